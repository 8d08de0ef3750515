"""Optimizers that predict parameters or estimate earlier ones: the promises, and the mistakes that they find."""

from __future__ import annotations

import pytest
import torch
from attrs import frozen
from petra_graph_conformance import OptimizerTrial

from petra_graph.kinds.optimizer import ParameterGroups, needs_delays
from petra_graph.plugins import OptimizerDeclaration
from tests.support.plugin_of_each_kind import broken, declared

PROMISES = {"predicted_weights": "predicted weights", "earlier_weights": "earlier weights"}


@frozen(kw_only=True)
class Options:
    lr: float = 0.1


class Away(torch.optim.SGD):
    """Momentum with weights as many steps away as the delay says; each class below has one mistake.

    A test gives `weights` its name of an optimizer.
    """

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

    def weights(self, delay):
        return self.moved(delay) if delay else []


class Nothing(Away):
    def weights(self, delay):
        return None


class Flat(Away):
    def weights(self, delay):
        return [(one, value.flatten()) for one, value in super().weights(delay)]


class Shares(Away):
    def weights(self, delay):
        return [(one, one.detach()) for group in self.param_groups for one in group["params"]]


class NotFinite(Away):
    def weights(self, delay):
        return [(one, value / 0) for one, value in super().weights(delay)]


class Writes(Away):
    def weights(self, delay):
        found = super().weights(delay)
        for one, _ in found:
            one.add_(1e-3)
        return []


class Counts(Away):
    def weights(self, delay):
        for group in self.param_groups:
            group["asked"] = group.get("asked", 0) + 1
        return super().weights(delay)


class Draws(Away):
    def weights(self, delay):
        return [(one, value + 1e-3 * torch.rand(())) for one, value in super().weights(delay)]


class Moves(Away):
    def weights(self, delay):
        return self.moved(delay + 1)


class KeptBeside(Away):
    def __init__(self, groups, options):
        super().__init__(groups, options)
        self.steps = 0

    def step(self, closure=None):
        super().step()
        self.steps += 1

    def weights(self, delay):
        return self.moved(delay * self.steps) if delay else []


class ForEach(Away):
    def weights(self, parameter, delay):
        return parameter


def found(optimizer, *methods):
    made = type(optimizer.__name__, (optimizer,), dict.fromkeys(methods, optimizer.weights))
    return broken(OptimizerTrial.of(declared(OptimizerDeclaration, made, options=Options)))


@pytest.mark.parametrize("method", PROMISES)
@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (Nothing, "returns None, not a list of (parameter, tensor)"),
        (Flat, "returns [12] in float32 on cpu for a parameter [4, 3] in float32 on cpu"),
        (Shares, "returns a tensor in the memory of a parameter"),
        (NotFinite, "returns values that are not finite"),
        (Writes, "wrote to parameters"),
        (Counts, "changed the optimizer's state"),
        (Draws, "returns other values at a second call"),
        (Moves, "moves parameters at a delay of 0"),
        (KeptBeside, "returns other values after a checkpoint"),
    ],
)
def test_it_is_caught(optimizer, said, method):
    assert f"its {method} {said}" in found(optimizer, method)[PROMISES[method]]


@pytest.mark.parametrize("method", PROMISES)
def test_one_that_cannot_be_asked_is_not_built(method):
    assert f"cannot be called as {method}(delay)" in found(ForEach, method)["construction"]


def test_one_with_both_is_not_built():
    assert "it has predicted_weights and earlier_weights" in found(Away, *PROMISES)["construction"]


@pytest.mark.parametrize("most", ["1", None, -1, float("nan")])
def test_one_whose_largest_delay_is_no_number_is_not_built(most):
    """The plan compared it with delays, and ended with a traceback."""
    made = type("Limited", (Away,), {"largest_staleness": most})
    said = broken(OptimizerTrial.of(declared(OptimizerDeclaration, made, options=Options)))["construction"]
    assert f"its largest_staleness is {most!r}, not a number of at least 0" in said


@pytest.mark.parametrize("method", PROMISES)
def test_one_whose_groups_have_no_staleness_is_asked_for_its_delays(method):
    groups = ParameterGroups(decayed=[torch.nn.Parameter(torch.ones(2))], undecayed=[])
    assert needs_delays(type("Named", (Away,), {method: Away.weights})(groups, Options()))
    assert not needs_delays(Away(groups, Options()))


@pytest.mark.parametrize("method", PROMISES)
def test_what_is_right_passes(method):
    assert found(Away, method) == {}
