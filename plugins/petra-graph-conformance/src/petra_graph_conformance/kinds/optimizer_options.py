"""What an optimizer makes of its options, its groups and its later steps: doubts, since an optimizer of its own kind may mean them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import attrs
import torch
from torch import Tensor

from petra_graph_conformance.broken_promise import BrokenPromise, all_equal
from petra_graph_conformance.kinds.optimizer_trial import LATER, RATE, OptimizerTrial, Stage

_ARITHMETIC = frozenset({"lr", "foreach", "fused", "capturable", "differentiable"})
"""Options that another promise asks about, or that change how a step is computed, and not what."""
_FACTORS = (0.5, 2.0, 1e3, 1e-3)
_DECAY = 0.1


def check_options(trial: OptimizerTrial) -> None:
    """Every option changes the steps, whatever the others are: one that is read nowhere changes nothing.

    Each is given other values that its validator takes, beside the others as they are and beside others as well. Texts are let be.
    """
    if trial.asks and not trial.facts.steady:  # options of delays change nothing there
        return
    options = trial.options
    names = [field.name for field in attrs.fields(type(options)) if field.name not in _ARITHMETIC]
    others = options
    for name in names:
        others = next(iter(_changed(others, name)), others)
    idle = [name for name in names if not _changes(trial, options, name) and not _changes(trial, others, name)]
    if idle:
        found = f"{', '.join(idle)} may have any value: {LATER} steps come to the same parameters"
        raise BrokenPromise("options", found, "read every option where the optimizer is built, or leave it out")


def _changes(trial: OptimizerTrial, options: Any, name: str) -> bool:
    """Whether another value of an option changes the steps, or all others are refused."""
    expected, tried = _steps(trial, options), False
    for changed in _changed(options, name):
        values = _steps(trial, changed)
        if values is None or expected is None:
            continue
        if not all_equal(values, expected):
            return True
        tried = True
    return not tried


def _changed(options: Any, name: str) -> Iterator[Any]:
    value = getattr(options, name)
    if isinstance(value, bool):
        others: list[Any] = [not value]
    elif isinstance(value, int):
        others = [value + 1, 2 * value + 1, max(0, value - 1), 1]
    elif isinstance(value, float):
        others = [value * factor for factor in _FACTORS] if value else [_DECAY, 1.0]
    elif isinstance(value, tuple) and value and all(isinstance(one, float) for one in value):
        others = [tuple(one * factor for one in value) for factor in _FACTORS]
    else:
        return
    for other in others:
        with suppress(Exception):  # its validator refuses the value
            yield attrs.evolve(options, **{name: other})


def _steps(trial: OptimizerTrial, options: Any) -> list[Tensor] | None:
    """Return the parameters after a number of steps; None where the optimizer refuses the options."""
    try:
        stage = attrs.evolve(trial, options=options).stage()
        stage.step(range(LATER))
    except Exception:  # noqa: BLE001
        return None
    return stage.values()


def check_decay(trial: OptimizerTrial) -> None:
    """Each group keeps its own decay: where gradients are zero, parameters without weight decay stay where they are."""
    options = trial.options
    if getattr(options, "weight_decay", None) == 0:
        options = next(iter(_changed(options, "weight_decay")), options)
    stage = attrs.evolve(trial, options=options).stage()
    before = [one.detach().clone() for one in stage.groups.undecayed]
    for number in range(2):
        for parameter in stage.parameters:
            parameter.grad = torch.zeros_like(parameter)
        stage.set(trial.base, number)
        stage.optimizer.step()
    if not all_equal(before, [one.detach() for one in stage.groups.undecayed]):
        found = "gradients of zero moved parameters of groups.undecayed: norms and biases, which have no weight decay"
        remedy = 'read group["weight_decay"] in step(), and build the groups with groups.param_groups(weight_decay=...)'
        raise BrokenPromise("decay", found, remedy)


def check_later_steps(trial: OptimizerTrial) -> None:
    """Later steps are as the first: each moves every parameter that has a gradient, and counts as one."""
    stage = trial.stage()
    for number in range(LATER):
        before, counts = stage.values(), _counts(stage)
        stage.step([number], lambda _: max(trial.base, RATE))
        still = sum(torch.equal(one, other) for one, other in zip(before, stage.values(), strict=True))
        if still:
            found = (
                f"step {number + 1} left {still} of {len(before)} parameters where they were, and earlier steps did not"
            )
            raise BrokenPromise("later steps", found, "move every parameter in every step")
        wrong = {after - one for one, after in zip(counts, _counts(stage), strict=False) if after - one != 1}
        if wrong:
            found = f'the count `state[parameter]["step"]` rose by {wrong.pop():g} in one step'
            raise BrokenPromise("later steps", found, "let step() call the step of its base class once")


def _counts(stage: Stage) -> list[float]:
    counts = [stage.optimizer.state[one].get("step") for one in stage.parameters if one in stage.optimizer.state]
    return [float(one) for one in counts if isinstance(one, int | float) or (isinstance(one, Tensor) and not one.dim())]
