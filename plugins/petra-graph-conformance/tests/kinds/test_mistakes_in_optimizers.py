"""Mistakes that authors of optimizers make, which show late, in an option, or in the groups."""

from __future__ import annotations

import pytest
import torch
from attrs import frozen
from petra_graph_conformance import OptimizerTrial
from petra_graph_conformance.examined_promises import examine

from petra_graph.plugins import OptimizerDeclaration
from tests.support.plugin_of_each_kind import declared


@frozen(kw_only=True)
class Options:
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.0
    nesterov: bool = False


class Sgd(torch.optim.SGD):
    def __init__(self, groups, options):
        super().__init__(
            groups.param_groups(weight_decay=options.weight_decay),
            lr=options.lr,
            momentum=options.momentum,
            nesterov=options.nesterov,
        )


class LooksAhead(Sgd):
    """Slow weights at every tenth step, in an attribute."""

    def __init__(self, groups, options):
        super().__init__(groups, options)
        self.slow = [one.detach().clone() for group in self.param_groups for one in group["params"]]
        self.count = 0

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        self.count += 1
        if self.count % 10 == 0:
            for slow, one in zip(
                self.slow, (one for group in self.param_groups for one in group["params"]), strict=True
            ):
                slow.lerp_(one, 0.5)
                one.copy_(slow)


class CountsInAnAttribute(Sgd):
    """A rate that falls after the twentieth step."""

    count = 0

    def step(self, closure=None):
        self.count += 1
        for group in self.param_groups:
            group["lr"] *= 1.0 if self.count < 20 else 0.5
        super().step(closure)


class ForgetsAnOption(torch.optim.SGD):
    def __init__(self, groups, options):
        super().__init__(groups.param_groups(weight_decay=options.weight_decay), lr=options.lr, momentum=0.9)


class OneDecay(torch.optim.SGD):
    def __init__(self, groups, options):
        super().__init__(
            [*groups.decayed, *groups.undecayed],
            lr=options.lr,
            momentum=options.momentum,
            weight_decay=options.weight_decay,
            nesterov=options.nesterov,
        )


class StepsTwice(torch.optim.AdamW):
    def __init__(self, groups, options):
        super().__init__(groups.param_groups(weight_decay=0.0), lr=options.lr)

    def step(self, closure=None):
        super().step(closure)
        super().step(closure)


class StopsLater(Sgd):
    def step(self, closure=None):
        state = self.state[self.param_groups[0]["params"][0]]
        state["count"] = state.get("count", 0) + 1
        if state["count"] <= 15:
            super().step(closure)


@pytest.mark.parametrize(
    ("optimizer", "promise", "status", "found", "remedy"),
    [
        (
            LooksAhead,
            "state dictionary",
            "broken",
            "comes to other parameters",
            "keep what steers the steps in self.state",
        ),
        (LooksAhead, "checkpoint", "broken", "outside of `state` it has `slow`, `count`", "keep what steers the steps"),
        (CountsInAnAttribute, "checkpoint", "broken", "comes to other parameters", "keep what steers the steps"),
        (ForgetsAnOption, "options", "doubtful", "momentum, nesterov may have any value", "read every option"),
        (
            OneDecay,
            "decay",
            "doubtful",
            "moved parameters of groups.undecayed",
            "groups.param_groups(weight_decay=...)",
        ),
        (StepsTwice, "later steps", "doubtful", "rose by 2 in one step", "call the step of its base class once"),
        (StopsLater, "later steps", "doubtful", "step 16 left 4 of 4 parameters where they were", "in every step"),
    ],
)
def test_a_mistake_is_found_by_its_promise(optimizer, promise, status, found, remedy):
    trial = OptimizerTrial.of(declared(OptimizerDeclaration, optimizer, options=Options))
    outcome = next(one for one in examine(trial).outcomes if one.promise == promise)
    assert (outcome.status, found in outcome.found, remedy in outcome.remedy) == (status, True, True)


class KeepsItsCount(Sgd):
    """A look-ahead whose count and slow weights are in `state`."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is None:
                    continue
                state = self.state[one]
                state["count"] = state.get("count", 0) + 1
                slow = state.setdefault("slow", one.detach().clone())
                if state["count"] % 10 == 0:
                    slow.lerp_(one, 0.5)
                    one.copy_(slow)


@pytest.mark.parametrize("optimizer", [Sgd, KeepsItsCount])
def test_a_right_optimizer_is_accepted(optimizer):
    trial = OptimizerTrial.of(declared(OptimizerDeclaration, optimizer, options=Options))
    assert {one.promise: one.found for one in examine(trial).outcomes if one.found} == {}
