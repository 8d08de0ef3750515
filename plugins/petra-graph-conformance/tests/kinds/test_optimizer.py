"""Optimizers, each wrong in one way: the promise that it breaks says so."""

from __future__ import annotations

import random

import pytest
import torch
from attrs import define, evolve
from petra_graph_conformance import OptimizerTrial
from petra_graph_conformance.examined_promises import examine

from petra_graph.errors import SpecError
from petra_graph.kinds.stage_facts import DELAYED, UNDELAYED
from petra_graph.plugins import OptimizerDeclaration
from tests.support.kit import ask, kept
from tests.support.plugin_of_each_kind import Rate, broken, declared


class Momentum(torch.optim.Optimizer):
    """What all others are a broken variant of."""

    def __init__(self, groups, options):
        self.options = options
        super().__init__([*groups.decayed, *groups.undecayed], {"lr": options.lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, group["lr"])

    def update(self, parameter, rate):
        average = self.state[parameter].setdefault("average", torch.zeros_like(parameter))
        average.lerp_(parameter.grad, 0.1)
        parameter.sub_(average, alpha=rate)


class ForgetsSome(Momentum):
    def __init__(self, groups, options):
        self.options = options
        torch.optim.Optimizer.__init__(self, groups.decayed, {"lr": 1.0})


class StepsCopies(Momentum):
    def update(self, parameter, rate):
        parameter.clone().sub_(parameter.grad)


class SkipsVectors(Momentum):
    def update(self, parameter, rate):
        if parameter.dim() > 1:
            super().update(parameter, rate)


class NeedsGradients(Momentum):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["lr"])


class OwnRate(Momentum):
    def update(self, parameter, rate):
        super().update(parameter, self.options.lr)


class RateOfTheFirstStep(Momentum):
    def update(self, parameter, rate):
        self.rate = getattr(self, "rate", rate)
        super().update(parameter, self.rate)


class RateOfNoOption(Momentum):
    def __init__(self, groups, options):
        torch.optim.Optimizer.__init__(self, [*groups.decayed, *groups.undecayed], {"lr": 1.0})


class CountsBesideTheState(Momentum):
    count = 0

    def update(self, parameter, rate):
        self.count += 1
        super().update(parameter, rate / self.count)


class SlowWeightsBesideTheState(Momentum):
    def __init__(self, groups, options):
        super().__init__(groups, options)
        self.slow = {}

    def update(self, parameter, rate):
        super().update(parameter, rate)
        slow = self.slow.setdefault(parameter, parameter.clone())
        slow.lerp_(parameter, 0.5)
        parameter.copy_(slow)


class Noisy(Momentum):
    def update(self, parameter, rate):
        super().update(parameter, rate * (1 + random.random()))


class SharesItsCount(Momentum):
    count = [0]  # noqa: RUF012  shared by all instances, which is the point

    def update(self, parameter, rate):
        self.count[0] += 1
        super().update(parameter, rate / self.count[0])


class HoldsAFunction(Momentum):
    def update(self, parameter, rate):
        super().update(parameter, rate)
        self.state[parameter]["how"] = lambda: None


class HoldsStateOfAText(Momentum):
    def update(self, parameter, rate):
        super().update(parameter, rate)
        self.state["steps"] = self.state.get("steps", 0) + 1


class ForgetsToLoad(Momentum):
    def load_state_dict(self, state_dict):
        pass


def layerwise(groups, options):
    rates = ((groups.decayed, options.lr), (groups.undecayed, 10 * options.lr))
    return torch.optim.SGD([{"params": list(some), "lr": rate} for some, rate in rates], lr=options.lr)


def trial(build, options=Rate):
    return OptimizerTrial.of(declared(OptimizerDeclaration, build, options=options))


def test_what_is_sound_passes():
    report = kept(OptimizerTrial.of(declared(OptimizerDeclaration, Momentum, options=Rate), {"lr": 0.5}))
    assert str(report).endswith("(Rate(lr=0.5)) keeps 14 promises")
    assert broken(trial(lambda groups, options: torch.optim.Adam([*groups.decayed, *groups.undecayed]))) == {}
    assert broken(trial(layerwise)) == {}


@pytest.mark.parametrize(
    ("build", "promise", "found"),
    [
        (lambda groups, options: None, "construction", "its build returns None, not a torch.optim.Optimizer"),
        (lambda groups, _: torch.optim.LBFGS(groups.decayed), "construction", "its step() needs closure"),
        (ForgetsSome, "construction", "its groups leave out 2 of the 4 parameters"),
        (StepsCopies, "every parameter", "a step left 4 of 4 parameters where they were"),
        (SkipsVectors, "every parameter", "a step left 2 of 4 parameters where they were"),
        (NeedsGradients, "every parameter", "it raised TypeError at "),
        (OwnRate, "learning rate", "the first step at learning rate 0 moved parameters"),
        (RateOfTheFirstStep, "learning rate", "half the learning rate at a later step changed nothing"),
        (RateOfNoOption, "learning rate", "its groups are built with the rate 1, whatever options.lr is"),
        (Noisy, "repeatable", "two stages with the same gradients came to other parameters"),
        (SharesItsCount, "repeatable", "two stages with the same gradients came to other parameters"),
        (CountsBesideTheState, "checkpoint", "outside of `state` it has `count`"),
        (SlowWeightsBesideTheState, "checkpoint", "outside of `state` it has `slow`"),
        (CountsBesideTheState, "state dictionary", "outside of `state` it has `count`"),
        (HoldsAFunction, "checkpoint", "its 'how' is function, which a checkpoint cannot hold"),
        (HoldsStateOfAText, "checkpoint", "it keeps state of something else than its parameters"),
        (ForgetsToLoad, "state dictionary", "what load_state_dict has read, state_dict does not return"),
    ],
)
def test_it_is_caught(build, promise, found):
    assert found in broken(trial(build))[promise]


@define
class Rates:
    lr: float = 0.1


def test_loose_options():
    assert "can be changed or takes positional values" in broken(trial(Momentum, Rates))["declaration"]


def every(groups):
    return [*groups.decayed, *groups.undecayed]


class Ascends(torch.optim.Optimizer):
    """Its momentum is right, and its sign is not."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["momentum"] = 0.9 * state.get("momentum", 0) + parameter.grad
                    parameter.add_(state["momentum"], alpha=group["lr"])


def test_an_optimizer_that_ascends():
    found = broken(trial(lambda groups, options: Ascends(every(groups), {"lr": options.lr})))
    assert found == {"descends": "4 steps of one gradient moved the parameters along it, so a loss would rise"}


@pytest.mark.parametrize(
    ("optimizer", "more"),
    [
        ("SGD", {"momentum": 0.9, "weight_decay": 1.0}),
        ("Adam", {"weight_decay": 0.5}),
        ("AdamW", {"weight_decay": 1.0, "amsgrad": True}),
        ("Adadelta", {}),
        ("Adafactor", {}),
        ("Adagrad", {"lr_decay": 0.1}),
        ("Adamax", {}),
        ("ASGD", {}),
        ("NAdam", {}),
        ("RAdam", {}),
        ("RMSprop", {"centered": True}),
        ("Rprop", {}),
    ],
)
def test_optimizers_of_torch_descend(optimizer, more):
    def build(groups, options):
        return getattr(torch.optim, optimizer)(every(groups), lr=options.lr, **more)

    ask(trial(build), "descends")


# --- optimizers that know the delay of their stage -----------------------------------------------------------------------


def told(optimizer):
    for group in optimizer.param_groups:
        group["staleness"] = 0.0


class Scaled(Momentum):
    """Momentum whose step shrinks with its delay."""

    def __init__(self, groups, options, stage):
        super().__init__(groups, options)
        told(self)
        self.stage = stage

    def update(self, parameter, rate):
        (late,) = {group["staleness"] for group in self.param_groups}
        super().update(parameter, rate / (1 + late))


class CountsWhereItIsLate(Scaled):
    count = 0

    def update(self, parameter, rate):
        self.count += self.stage.steady > 0
        super().update(parameter, rate / (1 + self.count))


class FailsWhereItIsLate(Scaled):
    def update(self, parameter, rate):
        super().update(parameter, rate / (self.stage.depth < 2))


class Told(Momentum):
    """Asks for no facts."""

    def __init__(self, groups, options):
        super().__init__(groups, options)
        told(self)

    def update(self, parameter, rate):
        (late,) = {group["staleness"] for group in self.param_groups}
        super().update(parameter, rate / (1 + late))


class ToldAndCounts(Told):
    count = 0

    def update(self, parameter, rate):
        (late,) = {group["staleness"] for group in self.param_groups}
        self.count += late > 0
        super().update(parameter, rate / (1 + self.count))


class AsksAlone(Scaled):
    """Reads a key that its groups do not have."""

    def __init__(self, groups, options, stage):
        super().__init__(groups, options, stage)
        for group in self.param_groups:
            del group["staleness"]


def test_one_that_asks_is_tried_without_delay_and_with():
    asked = []

    def build(groups, options, *, stage):
        asked.append(stage)
        return Scaled(groups, options, stage)

    for sound in (Scaled, build):
        report = kept(OptimizerTrial.of(declared(OptimizerDeclaration, sound, options=Rate), {"lr": 0.5}))
        assert str(report).endswith("(Rate(lr=0.5)) keeps 14 promises")
    assert {(stage.index, stage.depth, stage.steady) for stage in asked} == {(4, 1, 0.0), (1, 4, 3.0)}


def test_one_whose_groups_have_the_delay_is_tried_without_it_and_with():
    assert trial(Told).asks
    assert [case.facts for case in trial(Told).cases] == [UNDELAYED, DELAYED]
    assert broken(trial(Told)) == {}
    found = broken(trial(ToldAndCounts))
    assert {"state dictionary", "checkpoint"} == found.keys()
    assert all(text.endswith("(in stage 1 of 4, with a delay of 3 updates)") for text in found.values())


def test_a_parameter_stage_alone_gives_the_groups_no_delay():
    found = broken(trial(AsksAlone))
    assert "it raised KeyError" in found["every parameter"]


@pytest.mark.parametrize("error", [RuntimeError("no"), SpecError("no")])
def test_one_that_cannot_be_built_is_tried_once_and_says_why(error):
    def build(groups, options):
        raise error

    made = trial(build)
    assert made.cases == (made,)
    assert f"{type(error).__name__}" in broken(made)["construction"]
    assert "no" in broken(made)["construction"]


def test_stages_of_its_own():
    asked = []
    alone = evolve(DELAYED, depth=9, accumulation=4)
    kept(
        OptimizerTrial.of(
            declared(
                OptimizerDeclaration,
                lambda groups, options, stage: asked.append(stage) or Scaled(groups, options, stage),
                options=Rate,
            ),
            stages=[alone],
        )
    )
    assert set(asked) == {alone}


def test_what_is_broken_in_a_stage_with_a_delay_says_so():
    found = broken(trial(CountsWhereItIsLate))
    where = "(in stage 1 of 4, with a delay of 3 updates)"
    assert {"state dictionary", "checkpoint"} == found.keys()
    assert all(text.endswith(where) for text in found.values())
    remedies = [one.remedy for one in examine(trial(FailsWhereItIsLate)).broken if "ZeroDivision" in one.found]
    assert remedies
    assert all("in stage 1 of 4, with a delay of 3 updates" in text for text in remedies)


@pytest.mark.parametrize(
    "build",
    [Momentum, lambda groups, stage: Momentum(groups, options=stage)],
)
def test_one_that_does_not_ask_is_called_as_ever(build):
    """A parameter of that name which its kind gives another value is no question."""
    made = trial(build)
    assert not made.asks
    assert made.cases == (made,)
    assert broken(made) == {}
    stage = made.stage()
    stage.step([0])
    assert "staleness" not in stage.optimizer.param_groups[0]
