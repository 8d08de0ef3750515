"""Optimizers that say which weights are evaluated: the promise, and the mistakes that it finds."""

from __future__ import annotations

import pytest
import torch
from attrs import frozen
from petra_graph_conformance import OptimizerTrial

from petra_graph.plugins import OptimizerDeclaration
from tests.support.plugin_of_each_kind import broken, declared


@frozen(kw_only=True)
class Options:
    lr: float = 0.1


class Averaging(torch.optim.Optimizer):
    """Gradient descent that is evaluated at the mean of its weights; each class below has one mistake more."""

    def __init__(self, groups, options):
        super().__init__([*groups.decayed, *groups.undecayed], {"lr": options.lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["steps"] = state.get("steps", 0) + 1
                    parameter.sub_(parameter.grad, alpha=group["lr"])
                    state.setdefault("mean", parameter.clone()).lerp_(parameter, 1 / state["steps"])

    def evaluated_weights(self, parameter):
        return self.state[parameter].get("mean", parameter)


class Nothing(Averaging):
    def evaluated_weights(self, parameter):
        return None


class Flat(Averaging):
    def evaluated_weights(self, parameter):
        return super().evaluated_weights(parameter).flatten()


class Double(Averaging):
    def evaluated_weights(self, parameter):
        return super().evaluated_weights(parameter).double()


class NotFinite(Averaging):
    def evaluated_weights(self, parameter):
        return super().evaluated_weights(parameter) / 0


class SwapsItself(Averaging):
    """As libraries do it whose users call `eval()` and `train()`."""

    @torch.no_grad()
    def evaluated_weights(self, parameter):
        return parameter.copy_(super().evaluated_weights(parameter))


class Counts(Averaging):
    def evaluated_weights(self, parameter):
        if self.state[parameter]:
            self.state[parameter]["steps"] += 1
        return super().evaluated_weights(parameter)


class KeptBeside(Averaging):
    def __init__(self, groups, options):
        super().__init__(groups, options)
        self.means = {}

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for parameter in self.state:
            self.means.setdefault(parameter, parameter.clone()).lerp_(parameter, 0.5)

    def evaluated_weights(self, parameter):
        return self.means.get(parameter, parameter)


class ForAll(Averaging):
    def evaluated_weights(self):
        return []


def found(optimizer):
    return broken(OptimizerTrial.of(declared(OptimizerDeclaration, optimizer, options=Options)))


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (Nothing, "its evaluated_weights returns None, not a tensor"),
        (Flat, "its evaluated_weights returns [12] in float32 for a parameter [4, 3] in float32"),
        (Double, "its evaluated_weights returns [4, 3] in float64 for a parameter [4, 3] in float32"),
        (NotFinite, "its evaluated_weights returns values that are not finite"),
        (SwapsItself, "evaluated_weights wrote to parameters"),
        (Counts, "evaluated_weights changed the optimizer's state"),
        (KeptBeside, "after a checkpoint it returns other weights"),
    ],
)
def test_it_is_caught(optimizer, said):
    assert said in found(optimizer)["evaluated weights"]


def test_one_that_cannot_be_asked_is_not_built():
    assert (
        "ForAll.evaluated_weights() cannot be called as evaluated_weights(parameter)" in found(ForAll)["construction"]
    )


def test_what_is_right_passes():
    assert found(Averaging) == {}
