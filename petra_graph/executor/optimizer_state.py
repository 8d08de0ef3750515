"""What a stage's optimizer holds between two steps, captured and put back.

    optimizer/NODE/NAME/KEY    a tensor of the state of a parameter; what is not a tensor is among the facts
    facts["groups"]            of each group, what has changed since the optimizer was built: rates, and whatever it counts

What was as it had been built is as it is built now, from the options and for the stage of now.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from petra_graph.errors import RunFailed
from petra_graph.executor.checkpoint_tensors import Facts, SavedTensors
from petra_graph.executor.stage_update import Updater

_HERE, _ON_HOST = {"tensor": "on the stage's device"}, {"tensor": "on the host"}
NamedParameters = Iterable[tuple[str, nn.Parameter]]
"""By "NODE/NAME"; nodes of a stage may share one."""


def capture_optimizer(saved: SavedTensors, updater: Updater, parameters: NamedParameters) -> None:
    """Copy what an optimizer holds.

    Raises:
        RunFailed: it is neither a tensor nor a plain value.
    """
    optimizer = updater.optimizer
    if optimizer is None:
        return
    named = dict(parameters)
    own = set(map(id, named.values()))
    if others := [key for key in optimizer.state if id(key) not in own]:
        message = f"the optimizer {type(optimizer).__name__} cannot be written to a checkpoint: it keeps state of {others[0]!r}"
        raise RunFailed(message, hint="optimizers keep state of parameters, and plain values in their groups")
    states: Facts = {}
    for name, parameter in named.items():
        if parameter not in optimizer.state:
            continue
        states[name] = {}
        for key, value in optimizer.state[parameter].items():
            if isinstance(value, Tensor):
                saved.put(f"optimizer/{name}/{key}", value)
                states[name][key] = _HERE if value.device == parameter.device else _ON_HOST
            else:
                states[name][key] = _plain(value, f"its state {key!r} of {name}", optimizer)
    saved.facts["optimizer"] = states
    if updater.stage is not None:
        saved.facts["late"] = updater.late
    saved.facts["groups"] = []
    for group, built in zip_longest(optimizer.param_groups, updater.built, fillvalue=dict[str, Any]()):
        values = {key: _plain(one, f"its group's {key!r}", optimizer) for key, one in group.items() if key != "params"}
        changed = {key: value for key, value in values.items() if repr(group[key]) != built.get(key)}
        saved.facts["groups"].append(changed)


def restore_optimizer(saved: SavedTensors, updater: Updater, parameters: NamedParameters, device: torch.device) -> None:
    """Give the parameters that the optimizer steps the state that it had of them, which may come from several stages."""
    optimizer = updater.optimizer
    if optimizer is None:
        return
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in parameters:
        keys = saved.facts["optimizer"].get(name)
        if keys is None or id(parameter) not in stepped:
            continue
        state: dict[str, Any] = {}
        for key, value in keys.items():
            if value in (_HERE, _ON_HOST):
                on = device if value == _HERE else torch.device("cpu")
                state[key] = saved.get(f"optimizer/{name}/{key}", on)
            else:
                state[key] = _from_json(value)
        optimizer.state[parameter] = state


def restore_groups(updater: Updater, groups: Sequence[Facts]) -> None:
    """Give an optimizer's groups back what the run had changed there; of other groups than the optimizer's, nothing is restored."""
    optimizer = updater.optimizer
    if optimizer is None or len(optimizer.param_groups) != len(groups):
        return
    for group, values in zip(optimizer.param_groups, groups, strict=True):
        group |= {key: _from_json(value) for key, value in values.items()}


def _from_json(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _plain(value: Any, what: str, optimizer: torch.optim.Optimizer) -> Any:
    """Return a value as JSON holds it.

    Raises:
        RunFailed: JSON cannot.
    """
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        message = f"the optimizer {type(optimizer).__name__} cannot be written to a checkpoint: {what} is {type(value).__name__}"
        raise RunFailed(message, hint="optimizers keep tensors, numbers, texts and lists of them") from None
