"""The state, the step and the parameters for a delay of a stage's optimizer, measured by calls of any plugin's optimizer.

Decision: parameters have no memory, and those of one node share an optimizer. First-party optimizers go tensor by tensor
on the CPU, as here; on a GPU torch's own take all tensors of a kind together, for speed, and hold another copy meanwhile.

Decision: costs are measured before stages are known, so an optimizer that knows the delay of its stage is measured in one with a delay
of 3 updates: its first step, which no stage makes late, and a late one. The state and the steps of a stage without delay may need less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import nn

from petra_graph.blocks import Block
from petra_graph.blocks.parameter_groups import parameter_groups
from petra_graph.errors import PluginError
from petra_graph.executor.update import Updater
from petra_graph.measure.counted_operations import work_of
from petra_graph.measure.tally import Tally, distinct_bytes, tensors
from petra_graph.plugins.author_code import author_code
from petra_graph.plugins.contract import Builder
from petra_graph.plugins.optimizer import EARLIER, PREDICTED, ParameterGroups, rate_ratios
from petra_graph.plugins.stage_facts import DELAYED
from petra_graph.program.node_costs import Operation, Work
from petra_graph.spec.model import ClipSpec

_OF_DELAY: Mapping[Operation, str] = {"predict": PREDICTED, "estimate": EARLIER}
"""Operations that are methods of some optimizers, of (delay)."""
_STEPS: tuple[Operation, ...] = ("first_update", "update")
_NORM_BYTES = 16
"""For each value of the gradient whose norm is taken: a float64 of it and one of its square."""


def measure_update(
    module: Block,
    build: Builder,
    options: Any,
    clip: ClipSpec | None,
    owner: str = "the optimizer",
) -> tuple[int, Mapping[Operation, Work]]:
    """Return the bytes of state that an optimizer's first step over a module's parameters makes, and the work of its operations.

    Those are "first_update", "update", which is the second step, and "predict" and "estimate" if it has a method for them.

    Args:
        module: on any device.
        clip: the clipping before the step.
        owner: the optimizer's plugin, as messages name it.

    Raises:
        PluginError: the optimizer fails on the CPU as well.
    """
    groups = parameter_groups([module])
    parameters = (*groups.decayed, *groups.undecayed)
    if not parameters:
        return 0, dict.fromkeys(("first_update", "update"), Work())
    try:
        state_bytes, work = _stepped(_copies(groups, "meta"), build, options, owner)
    except (RuntimeError, NotImplementedError, PluginError):  # it reads values
        state_bytes, work = _stepped(_copies(groups, "cpu"), build, options, owner)
    if clip is None or clip.by == "value":
        return state_bytes, work
    of_norm = _NORM_BYTES * max(parameter.numel() for parameter in parameters)
    clipped = dict(work)
    for step in work.keys() & set(_STEPS):
        working = max(work[step].working_bytes, of_norm)
        clipped[step] = attrs.evolve(work[step], working_bytes=working, accumulating_bytes=working)
    return state_bytes, clipped


def _stepped(groups: ParameterGroups, build: Builder, options: Any, owner: str) -> tuple[int, Mapping[Operation, Work]]:
    parameters = [*groups.decayed, *groups.undecayed]
    optimizer = build(groups, options, stage=DELAYED)
    ratios = rate_ratios(optimizer, options.lr)
    updater = Updater(parameters, optimizer, lambda _: options.lr, None, owner=owner, ratios=ratios, stage=DELAYED)
    work: dict[Operation, Work] = {"first_update": _step(updater, 0)}
    state_bytes = distinct_bytes(tensors(list(optimizer.state.values())))
    work |= {name: _asked(optimizer, method, owner) for name, method in _OF_DELAY.items() if hasattr(optimizer, method)}
    work["update"] = _step(updater, DELAYED.depth)
    return state_bytes, work


def _step(updater: Updater, micro_batch: int) -> Work:
    """Return the work of a step with the gradients of a micro-batch of the run, the first of which are not late."""
    _give_gradients(updater.parameters)
    updater.accumulated(micro_batch)
    with Tally() as tally, author_code(f"{updater.owner} cannot be measured"):
        updater.step()
        return work_of(tally.lap())


def _asked(optimizer: torch.optim.Optimizer, method: str, owner: str) -> Work:
    """Return the work of parameters for a delay, whose own bytes are kept."""
    with torch.no_grad(), Tally() as tally:
        with author_code(f"{owner} failed at {method}(1)"):
            answer = getattr(optimizer, method)(1)
        lap = tally.lap()
        del answer
    return work_of(lap, kept=lap.left_bytes)


def _give_gradients(parameters: Sequence[nn.Parameter]) -> None:
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)


def _copies(groups: ParameterGroups, device: str) -> ParameterGroups:
    copies = {
        id(one): nn.Parameter(torch.zeros(one.shape, dtype=one.dtype, device=device), requires_grad=one.requires_grad)
        for one in (*groups.decayed, *groups.undecayed)
    }
    kinds = {field.name: getattr(groups, field.name) for field in attrs.fields(ParameterGroups)}
    return ParameterGroups(**{name: [copies[id(one)] for one in own] for name, own in kinds.items()})
