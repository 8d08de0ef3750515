"""Optimizers that predict parameters: the promise, and the mistakes that it finds."""

from __future__ import annotations

import pytest
import torch
from attrs import frozen

from petra_graph.plugins import OptimizerDeclaration
from petra_graph.testing import OptimizerTrial
from tests.kinds.plugin_of_each_kind import broken, declared


@frozen(kw_only=True)
class Options:
    lr: float = 0.1


class Ahead(torch.optim.SGD):
    """Momentum that predicts one step as long as the last one; each class below has one mistake."""

    def __init__(self, groups, options):
        super().__init__(
            [{"params": groups.decayed}, {"params": groups.undecayed}], lr=options.lr, momentum=0.5, nesterov=False
        )

    def moved(self, delay):
        return [
            (one, one.detach() - delay * group["lr"] * self.state[one]["momentum_buffer"])
            for group in self.param_groups
            for one in group["params"]
            if self.state.get(one)
        ]

    def predicted_weights(self, delay):
        return self.moved(delay) if delay else []


class Nothing(Ahead):
    def predicted_weights(self, delay):
        return None


class Flat(Ahead):
    def predicted_weights(self, delay):
        return [(one, value.flatten()) for one, value in super().predicted_weights(delay)]


class Shares(Ahead):
    def predicted_weights(self, delay):
        return [(one, one.detach()) for group in self.param_groups for one in group["params"]]


class NotFinite(Ahead):
    def predicted_weights(self, delay):
        return [(one, value / 0) for one, value in super().predicted_weights(delay)]


class Writes(Ahead):
    def predicted_weights(self, delay):
        found = super().predicted_weights(delay)
        for one, _ in found:
            one.add_(1e-3)
        return []


class Counts(Ahead):
    def predicted_weights(self, delay):
        for group in self.param_groups:
            group["asked"] = group.get("asked", 0) + 1
        return super().predicted_weights(delay)


class Draws(Ahead):
    def predicted_weights(self, delay):
        return [(one, value + 1e-3 * torch.rand(())) for one, value in super().predicted_weights(delay)]


class AlwaysAhead(Ahead):
    def predicted_weights(self, delay):
        return self.moved(delay + 1)


class KeptBeside(Ahead):
    def __init__(self, groups, options):
        super().__init__(groups, options)
        self.steps = 0

    def step(self, closure=None):
        super().step()
        self.steps += 1

    def predicted_weights(self, delay):
        return self.moved(delay * self.steps) if delay else []


class ForEach(Ahead):
    def predicted_weights(self, parameter, delay):
        return parameter


def found(optimizer):
    return broken(OptimizerTrial.of(declared(OptimizerDeclaration, optimizer, options=Options)))


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (Nothing, "its predicted_weights returns None, not a list of (parameter, tensor)"),
        (Flat, "its predicted_weights returns [12] in float32 on cpu for a parameter [4, 3] in float32 on cpu"),
        (Shares, "its predicted_weights returns a tensor in the memory of a parameter"),
        (NotFinite, "its predicted_weights returns values that are not finite"),
        (Writes, "its predicted_weights wrote to parameters"),
        (Counts, "its predicted_weights changed the optimizer's state"),
        (Draws, "its predicted_weights returns other values at a second call"),
        (AlwaysAhead, "its predicted_weights moves parameters at a delay of 0"),
        (KeptBeside, "after a checkpoint it predicts other values"),
    ],
)
def test_it_is_caught(optimizer, said):
    assert said in found(optimizer)["predicted weights"]


def test_one_that_cannot_be_asked_is_not_built():
    assert "cannot be called as predicted_weights(delay)" in found(ForEach)["construction"]


def test_what_is_right_passes():
    assert found(Ahead) == {}
