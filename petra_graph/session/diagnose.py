"""Where numbers stopped being finite.

Every stage notes the sum of what each forward in flight has sent; nobody looks at the notes until a loss is not finite.
The head looks at its loss before any gradient of it flows, so what is not finite elsewhere came earlier.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from petra_graph.errors import Problem
from petra_graph.executor.cells import HeadResult
from petra_graph.executor.stage import StageExecutor

_HINT = "lower the learning rate, lengthen the warm-up, clip gradients, or use fewer stages or a smaller staleness"


def loss_not_finite(executors: Sequence[StageExecutor], result: HeadResult, epoch: int) -> Problem:
    """Say in which stage a training loss stopped being finite.

    Args:
        executors: the stages, as the failure left them.
        result: the head's, whose loss is not finite.
        epoch: counted from 1.
    """
    sent_in_order = executors[:-1]
    stage = next((one for one in sent_in_order if not one.sent_finite(result.micro_batch)), executors[-1])
    nodes = ", ".join(stage.program.nodes)
    what = "loss" if stage is executors[-1] else "output"
    message = (
        f"the loss is {float(result.loss)} at micro-batch {result.micro_batch} (epoch {epoch}); "
        f"it began in the {what} of stage {stage.program.index} ({nodes})"
    )
    broken = broken_parameter([stage])
    precision = stage.precision
    narrow = [name for name in ("buffer_dtype", "wire_dtype") if getattr(precision, name) == "float16"]
    hint = f'{" and ".join(narrow)} = "float16" ends at 65504: try "bfloat16"; or {_HINT}' if narrow else _HINT
    return Problem(message=f"{message}, where {broken}" if broken else message, hint=hint)


def evaluation_not_finite(executors: Sequence[StageExecutor], loss: float, epoch: int) -> Problem:
    """Say why an evaluation's loss is not finite, after training losses that were."""
    broken = broken_parameter(executors)
    return Problem(
        message=f"the evaluation loss is {loss} after epoch {epoch}"
        + (f": {broken}" if broken else ", though all parameters are finite"),
        hint=_HINT if broken else "running statistics or activations overflow in evaluation: lower the learning rate",
    )


def broken_parameter(executors: Sequence[StageExecutor]) -> str | None:
    """Name a parameter that is not finite, in the stage nearest to the head: gradients flow down from there."""
    for executor in reversed(executors):
        for name, module in executor.modules.items():
            for key, parameter in module.named_parameters():
                if not bool(torch.isfinite(parameter).all()):
                    index, updates = executor.program.index, executor.updater.updates
                    return f'{key} of node "{name}" in stage {index} is not finite after {updates} updates'
    return None
