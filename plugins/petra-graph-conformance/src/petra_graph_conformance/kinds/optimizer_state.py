"""The state of an optimizer continues a checkpoint to the bit, and so do the weights that it makes of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch

from petra_graph.kinds.optimizer import (
    EARLIER,
    PREDICTED,
    evaluated_weights_fault,
    weights_of_delay_fault,
)
from petra_graph_conformance.broken_promise import BrokenPromise, all_equal
from petra_graph_conformance.kinds.optimizer_trial import LATER, STEPS, OptimizerTrial, Stage
from petra_graph_conformance.moved_generators import moved_since, states


def check_optimizer_state_dict(trial: OptimizerTrial) -> None:
    """What `state_dict` returns, loaded into a new optimizer, is the same state, and continues the run to the bit."""
    stage = trial.stage()
    stage.step(range(LATER))
    saved = deepcopy(stage.optimizer.state_dict())
    resumed = _resumed(stage)
    resumed.optimizer.load_state_dict(deepcopy(saved))
    again = resumed.optimizer.state_dict()
    if not _same(saved, again):
        found = "what load_state_dict has read, state_dict does not return"
        raise BrokenPromise("state dictionary", found, "leave both to torch.optim.Optimizer")
    _expect_continued("state dictionary", stage, resumed)


def check_checkpoint(trial: OptimizerTrial) -> None:
    """A checkpoint, which holds `state` of each parameter and the values of groups, continues the run to the bit."""
    stage = trial.stage()
    stage.step(range(LATER))
    resumed = _through_checkpoint(stage)
    _expect_continued("checkpoint", stage, resumed)


def _through_checkpoint(stage: Stage) -> Stage:
    """Return a stage that continues from what a checkpoint of this one would hold."""
    resumed = _resumed(stage)
    _expect_storable(stage)
    for parameter, own in zip(stage.parameters, resumed.parameters, strict=True):
        if parameter in stage.optimizer.state:
            resumed.optimizer.state[own] = {
                key: _read(value) for key, value in stage.optimizer.state[parameter].items()
            }
    for group, values in zip(resumed.optimizer.param_groups, stage.optimizer.param_groups, strict=True):
        group |= {key: _read(value) for key, value in values.items() if key != "params"}
    return resumed


def check_evaluated_weights(trial: OptimizerTrial) -> None:
    """Where the optimizer has `evaluated_weights`, it returns finite weights like the parameter, and changes nothing.

    They are the same after a checkpoint, since `evaluate` and a resumed run have nothing else.
    """
    remedy = "return a tensor that is made of the parameter and of self.state.get(parameter), and write to neither"
    stage = trial.stage()
    if not hasattr(stage.optimizer, "evaluated_weights"):
        return
    first = stage.evaluated_weights()
    stage.step(range(STEPS))
    before, state = stage.values(), _without_empty(stage.optimizer)
    generators, weights = states(), stage.evaluated_weights()
    found = next(filter(None, map(evaluated_weights_fault, stage.parameters * 2, [*first, *weights])), "")
    if not found and not all(bool(one.isfinite().all()) for one in [*first, *weights]):
        found = "its evaluated_weights returns values that are not finite"
    elif not found and not all_equal(before, stage.values()):
        found = "its evaluated_weights wrote to parameters"
    elif not found and (not _same(state, _without_empty(stage.optimizer)) or moved_since(generators)):
        found = "its evaluated_weights changed the optimizer's state, or drew random numbers"
    elif not found and not all_equal(weights, _through_checkpoint(stage).evaluated_weights()):
        found = "after a checkpoint it returns other weights"
    if found:
        raise BrokenPromise("evaluated weights", found, remedy)


def check_predicted_weights(trial: OptimizerTrial) -> None:
    """Where the optimizer has `predicted_weights`, it returns finite values like parameters, in memory of their own, and changes nothing.

    They are the same at every call and after a checkpoint, since each process predicts for itself. At a delay of 0, they are the parameters.
    """
    _expect_weights_of_delay("predicted weights", PREDICTED, trial)


def check_earlier_weights(trial: OptimizerTrial) -> None:
    """Where the optimizer has `earlier_weights`, it returns finite values like parameters, in memory of their own, and changes nothing.

    They are the same at every call and after a checkpoint. At a delay of 0, they are the parameters.
    """
    _expect_weights_of_delay("earlier weights", EARLIER, trial)


def _expect_weights_of_delay(promise: str, method: str, trial: OptimizerTrial) -> None:
    stage = trial.stage()
    if not hasattr(stage.optimizer, method):
        return
    remedy = "return a list of (parameter, new tensor), made of parameters, groups and self.state.get(parameter); write to none"
    found = _fault_of_weights(stage, method)  # before the first step
    stage.step(range(STEPS))
    found = found or _fault_of_weights(stage, method)
    if not found:
        resumed = _through_checkpoint(stage)
        values, again = ([one for _, one in each.weights_of_delay(method, 2)] for each in (stage, resumed))
        if not all_equal(values, again):
            found = f"its {method} returns other values after a checkpoint"
    if found:
        raise BrokenPromise(promise, found, remedy)


def _fault_of_weights(stage: Stage, method: str) -> str:
    """Return what is wrong with what a method returns in a stage as it is; "" where nothing is."""
    before, state, generators = stage.values(), _without_empty(stage.optimizer), states()
    found = next(filter(None, (_fault_at(stage, method, delay) for delay in (1, 3))), "")
    undelayed = stage.weights_of_delay(method, 0) if not found else ()
    if any(one.shape != own.shape or (one != own).any() for own, one in undelayed):
        found = "moves parameters at a delay of 0"
    elif not found and not all_equal(before, stage.values()):
        found = "wrote to parameters"
    elif not found and (not _same(state, _without_empty(stage.optimizer)) or moved_since(generators)):
        found = "changed the optimizer's state, or drew random numbers"
    return found and f"its {method} {found}"


def _fault_at(stage: Stage, method: str, delay: int) -> str:
    """Return what is wrong with two answers for one delay, as the end of a sentence."""
    pairs, again = stage.weights_of_delay(method, delay), stage.weights_of_delay(method, delay)
    faults = (weights_of_delay_fault(method, stage.parameters, one) for one in (pairs, again))
    if fault := next(filter(None, faults), ""):
        return fault.removeprefix(f"its {method} ")
    if not all(bool(one.isfinite().all()) for _, one in pairs):
        return "returns values that are not finite"
    same = all_equal([one for _, one in pairs], [one for _, one in again])
    return "" if same else "returns other values at a second call"


def _without_empty(optimizer: torch.optim.Optimizer) -> Any:
    """Return a copy of the state; asking for the state of a parameter that has none makes an empty one."""
    held = deepcopy(optimizer.state_dict())
    return {**held, "state": {key: value for key, value in held["state"].items() if value}}


def _expect_storable(stage: Stage) -> None:
    remedy = "keep state of parameters in self.state[parameter]: tensors, numbers, texts and lists of them"
    own = set(map(id, stage.parameters))
    if any(id(key) not in own for key in stage.optimizer.state):
        raise BrokenPromise("checkpoint", "it keeps state of something else than its parameters", remedy)
    states = [*stage.optimizer.state.values(), *({**group, "params": None} for group in stage.optimizer.param_groups)]
    for state in states:
        for key, value in state.items():
            try:
                value if isinstance(value, torch.Tensor) else json.dumps(value)
            except (TypeError, ValueError):
                found = f"its {key!r} is {type(value).__name__}, which a checkpoint cannot hold"
                raise BrokenPromise("checkpoint", found, remedy) from None


def _read(value: Any) -> Any:
    """Return a value as it comes back from a checkpoint."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    read = json.loads(json.dumps(value))
    return tuple(read) if isinstance(read, list) else read


def _resumed(stage: Stage) -> Stage:
    """Return a stage with equal parameters and a new optimizer."""
    resumed = stage.trial.stage()
    with torch.no_grad():
        for own, value in zip(resumed.parameters, stage.values(), strict=True):
            own.copy_(value)
    return resumed


def _expect_continued(promise: str, stage: Stage, resumed: Stage) -> None:
    others = _differing(stage.optimizer, resumed.optimizer)
    for one in (stage, resumed):
        one.step(range(LATER, 2 * LATER))
    if not all_equal(stage.values(), resumed.values()):
        named = f"; outside of `state` it has {', '.join(f'`{name}`' for name in others)}" if others else ""
        found = f"a resumed run comes to other parameters than one that was not interrupted{named}"
        raise BrokenPromise(promise, found, "keep what steers the steps in self.state[parameter], or in the groups")


def _differing(one: torch.optim.Optimizer, other: torch.optim.Optimizer) -> list[str]:
    """Return the attributes of an optimizer's own, or of one inside it, that differ from those of a new one."""
    known = set(vars(torch.optim.SGD([torch.zeros(())], lr=1.0)))
    return [
        name for name, value in vars(one).items() if name not in known and not _same(value, getattr(other, name, None))
    ]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return len(one) == len(other) and all(_same(*pair) for pair in zip(one.values(), other.values(), strict=True))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(_same(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other)
