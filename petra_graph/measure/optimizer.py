"""What a stage's optimizer keeps and does, found by letting it step: any plugin's optimizer, whatever it holds.

Decision: parameters without memory, all of one node in one optimizer. First-party optimizers go tensor by tensor on the
CPU, as here; on a GPU torch's own take all tensors of a kind together, for speed, and hold another copy meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import nn

from petra_graph.blocks import Block
from petra_graph.executor.update import Updater, parameter_groups
from petra_graph.measure.live_bytes import distinct_bytes
from petra_graph.measure.tally import Tally
from petra_graph.program.costs import Work
from petra_graph.registry.contracts import BuildOptimizer, ParameterGroups
from petra_graph.spec.model import ClipSpec

_NORM_BYTES = 16
"""For each value of a parameter whose gradient's norm is taken: a float64 of it and one of its square."""


@frozen(kw_only=True)
class UpdateCost:
    """An optimizer's state and step."""

    state_bytes: int
    work: Work


def measure_update(module: Block, build: BuildOptimizer, options: Any, clip: ClipSpec | None) -> UpdateCost:
    """Step twice with an optimizer over a module's parameters: the first makes its state.

    Args:
        module: on any device.
        build: the optimizer plugin's function.
        options: its options.
        clip: what comes before the step.
    """
    groups = parameter_groups([module])
    if not (groups.decayed or groups.undecayed):
        return UpdateCost(state_bytes=0, work=Work())
    try:
        found = _stepped(_copies(groups, "meta"), build, options)
    except (RuntimeError, NotImplementedError):  # it reads values
        found = _stepped(_copies(groups, "cpu"), build, options)
    if clip is None or clip.by == "value":
        return found
    largest = max(parameter.numel() for parameter in (*groups.decayed, *groups.undecayed))
    working = max(found.work.working_bytes, _NORM_BYTES * largest)
    return UpdateCost(
        state_bytes=found.state_bytes,
        work=Work(
            flops=found.work.flops,
            traffic_bytes=found.work.traffic_bytes,
            working_bytes=working,
            accumulating_bytes=working,
        ),
    )


def _stepped(groups: ParameterGroups, build: BuildOptimizer, options: Any) -> UpdateCost:
    parameters = [*groups.decayed, *groups.undecayed]
    optimizer = build(groups, options)
    updater = Updater(parameters, optimizer, lambda _: options.lr, None)
    _give_gradients(parameters)
    updater.step()
    state_bytes = distinct_bytes(_tensors(optimizer.state.values()))
    _give_gradients(parameters)
    with Tally() as tally:
        updater.step()
        lap = tally.lap()
    work = Work(
        flops=lap.flops,
        traffic_bytes=lap.traffic_bytes,
        working_bytes=lap.working_bytes,
        accumulating_bytes=lap.working_bytes,
    )
    return UpdateCost(state_bytes=state_bytes, work=work)


def _give_gradients(parameters: Sequence[nn.Parameter]) -> None:
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)


def _copies(groups: ParameterGroups, device: str) -> ParameterGroups:
    return ParameterGroups(
        decayed=[_copy(parameter, device) for parameter in groups.decayed],
        undecayed=[_copy(parameter, device) for parameter in groups.undecayed],
    )


def _copy(parameter: nn.Parameter, device: str) -> nn.Parameter:
    empty = torch.zeros(parameter.shape, dtype=parameter.dtype, device=device)
    return nn.Parameter(empty, requires_grad=parameter.requires_grad)


def _tensors(states: Iterable[dict[str, Any]]) -> list[torch.Tensor]:
    return [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]
