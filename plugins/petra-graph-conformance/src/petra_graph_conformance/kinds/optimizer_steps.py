"""The steps of an optimizer: each parameter once, at the rate that it is given, down the gradient."""

from __future__ import annotations

import math

import torch
from attrs import evolve

from petra_graph.kinds.generators import seeded
from petra_graph.kinds.optimizer import (
    ParameterGroups,
)
from petra_graph_conformance.broken_promise import BrokenPromise, all_equal
from petra_graph_conformance.kinds.optimizer_trial import RATE, STEPS, OptimizerTrial

_ACROSS = 0.01
"""The cosine of steps and gradient below which steps go neither up nor down."""


def check_optimizer_construction(trial: OptimizerTrial) -> None:
    """`build` returns an optimizer that has each parameter in one group, also where one kind of parameters is missing.

    `step()` needs no closure: gradients of a window are there when it is called.
    """
    every = trial.parameters()
    for groups in (
        every,
        ParameterGroups(decayed=every.decayed, undecayed=[]),
        ParameterGroups(decayed=[], undecayed=every.undecayed),
    ):
        trial.build(groups, trial.options)


def check_every_parameter(trial: OptimizerTrial) -> None:
    """A step moves every parameter that has a gradient, in place, and leaves alone those that have none."""
    stage = trial.stage()
    for without, remedy in (
        ((), "go over all of groups.decayed and groups.undecayed, and write to the parameters themselves"),
        ((0,), "pass over parameters whose grad is None: a step skips what a micro-batch has not reached"),
    ):
        before = stage.values()
        stage.step([len(without)], without=without)
        still = [index for index, value in enumerate(stage.values()) if torch.equal(value, before[index])]
        wrong = sorted(set(still) ^ set(without))
        if wrong:
            count, of = len(wrong), len(before)
            found = f"a step left {count} of {of} parameters where they were"
            if without:
                found = f"a step moved a parameter without a gradient, or left others ({count} of {of})"
            raise BrokenPromise("every parameter", found, remedy)


def check_learning_rate(trial: OptimizerTrial) -> None:
    """Steps follow the "lr" of each group, which is set before every step: 0 moves nothing, and a new rate counts at once."""
    remedy = 'read group["lr"] in step(); options.lr is the base rate, before warm-up and schedule'
    _expect_rates_of_options(trial)
    still = trial.stage()
    before = still.values()
    still.step([0], lambda _: 0.0)
    if not all_equal(before, still.values()):
        raise BrokenPromise("learning rate", "the first step at learning rate 0 moved parameters", remedy)
    one, other = trial.stage(), trial.stage()
    one.step(range(STEPS))
    other.step(range(STEPS), lambda number: trial.base * (0.5 if number == STEPS - 1 else 1.0))
    if all_equal(one.values(), other.values()):
        raise BrokenPromise("learning rate", "half the learning rate at a later step changed nothing", remedy)


def _expect_rates_of_options(trial: OptimizerTrial) -> None:
    """Compare the rates that groups are built with for two values of `options.lr`: the executor keeps their ratios to it."""
    stage = trial.stage()
    if not trial.options.lr or all(ratio == 1 for ratio in stage.ratios):
        return
    try:
        half = evolve(trial.options, lr=trial.options.lr / 2)
    except ValueError:  # a validator's
        return
    rates, others = (
        [group["lr"] for group in one.stage().optimizer.param_groups] for one in (trial, evolve(trial, options=half))
    )
    if rates == others:
        listed = " and ".join(f"{rate:g}" for rate in dict.fromkeys(map(float, rates)))
        found = f"its groups are built with the rate {listed}, whatever options.lr is, so that options.lr has no effect"
        raise BrokenPromise("learning rate", found, "build the groups with lr=options.lr, or multiples of it")


def check_descends(trial: OptimizerTrial) -> None:
    """Steps go down the gradient: where it is constant, the parameters move against it."""
    stage = trial.stage()
    before = stage.values()
    generator, gradients = torch.Generator().manual_seed(trial.seed + 1), []
    for value in before:
        drawn = torch.randn(value.shape, generator=generator)
        # Across the parameters, so that weight decay neither adds to the steps nor takes from them.
        gradients.append(drawn - value * (drawn * value).sum() / value.square().sum())
    for number in range(STEPS):
        for parameter, gradient in zip(stage.parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        stage.set(RATE, number)
        stage.optimizer.step()
    steps = [after - value for after, value in zip(stage.values(), before, strict=True)]
    along = sum(float((step * gradient).sum()) for step, gradient in zip(steps, gradients, strict=True))
    lengths = [math.hypot(*(float(one.norm()) for one in many)) for many in (steps, gradients)]
    if along > _ACROSS * math.prod(lengths):
        found = f"{STEPS} steps of one gradient moved the parameters along it, so a loss would rise"
        raise BrokenPromise(
            "descends", found, "subtract the step: parameter.sub_(lr * direction); leave out maximize=True"
        )


def check_same_steps(trial: OptimizerTrial) -> None:
    """The same parameters and gradients give the same bits, whatever other optimizers do and generators stand at."""
    remedy = "keep all state in self.state, draw no random numbers, and share nothing between optimizers"
    stages = []
    for seed in (1, 2):
        with seeded(seed):
            stages.append(trial.stage())
            stages[-1].step(range(STEPS))
    if not all_equal(stages[0].values(), stages[1].values()):
        raise BrokenPromise("repeatable", "two stages with the same gradients came to other parameters", remedy)
    one, other = trial.stage(), trial.stage()
    for number in range(STEPS):
        one.step([number])
        other.step([2 * STEPS + number])
    if not all_equal(one.values(), stages[0].values()):
        found = "the steps of another stage's optimizer, in between, changed the parameters"
        raise BrokenPromise("repeatable", found, remedy)
