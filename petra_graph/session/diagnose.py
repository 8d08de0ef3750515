"""Where a loss that is not finite came from.

Found only after it happened, by running the micro-batch through the stages once more, so that a healthy run pays
nothing. The head looks at its loss before any gradient of it flows, so what is not finite elsewhere came earlier.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from petra_graph.errors import Problem
from petra_graph.executor.cells import HeadResult
from petra_graph.executor.stage import StageExecutor
from petra_graph.runtime.inline import InlineRuntime, MicroBatch

_HINT = "lower the learning rate, lengthen the warm-up, clip gradients, or use fewer stages or a smaller staleness"


def not_finite(runtime: InlineRuntime, result: HeadResult, batch: MicroBatch, epoch: int) -> Problem:
    """Say in which stage the numbers stopped being finite.

    Args:
        runtime: the stages, as the failure left them.
        result: the head's, whose loss is not finite.
        batch: that micro-batch once more.
        epoch: counted from 1.
    """
    value = float(result.loss)
    where = _broken_parameters(runtime.executors) or _first_output(runtime, result.micro_batch, batch)
    message = f"the loss is {value} at micro-batch {result.micro_batch} (epoch {epoch}); {where}"
    return Problem(message=message, hint=_HINT)


def _broken_parameters(executors: Sequence[StageExecutor]) -> str | None:
    """Name the broken stage nearest to the head: gradients flow down from there."""
    for executor in reversed(executors):
        for name, module in executor.modules.items():
            for key, parameter in module.named_parameters():
                if not bool(torch.isfinite(parameter).all()):
                    updates = executor.updater.updates
                    return f'stage {executor.program.index}, node "{name}": {key} is not finite after update {updates}'
    return None


def _first_output(runtime: InlineRuntime, micro_batch: int, batch: MicroBatch) -> str:
    for stage, name, finite in runtime.outputs_finite(micro_batch, batch):
        if not finite:
            return f'it appeared in the output of stage {stage}, node "{name}"'
    return f"it appeared in the loss itself, in stage {runtime.executors[-1].program.index}"
