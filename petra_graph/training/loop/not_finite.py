"""The stage where numbers stopped being finite.

Every stage keeps the sum of the streams that each forward in flight has sent; the sums are read only when a loss is not
finite. The head checks its loss before any gradient of it flows, so a sum that is not finite elsewhere came earlier. The
state of stages in other processes is a value, which each process publishes when the run has failed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen

from petra_graph.errors import Problem, RunFailed
from petra_graph.executor.head import HeadResult
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.units import plural

_HINT = "lower the learning rate, lengthen the warm-up, clip gradients, or use fewer stages or a smaller staleness"

_OF_FINITE_OUTPUT = (
    "the head's output is finite, so the loss makes it nan: where it passes over all targets (-100), let its method target_weight "
    "say so"
)


@frozen(kw_only=True)
class StageState:
    index: int
    nodes: tuple[str, ...]
    sent_finite: bool
    """Whether all streams that the stage sent for the micro-batch in question were finite."""
    broken: str | None
    """A clause on a parameter that is not finite; None: all are finite."""


class NotFinite(RunFailed):
    """A loss is not finite, in training or in an evaluation."""

    def __init__(self, executors: Sequence[StageExecutor], result: HeadResult | float, epoch: int) -> None:
        """Locate where it began, among the stages of this process.

        `result` is the head's in training, or an evaluation's loss, after training losses that were finite.
        """
        self._result, self._epoch, self._precision = result, epoch, executors[-1].precision
        super().__init__(self.locate(stage_states(executors, self.micro_batch)))

    @property
    def micro_batch(self) -> int:
        """The micro-batch whose sums locate the failure; -1 for an evaluation, which does not have one."""
        return self._result.micro_batch if isinstance(self._result, HeadResult) else -1

    def locate(self, states: Sequence[StageState]) -> Problem:
        """Return the problem with the stage where it began, among `states`, which are in order."""
        result = self._result
        if not isinstance(result, HeadResult):
            broken = next((state.broken for state in reversed(states) if state.broken), None)
            message = f"the evaluation loss is {result} after epoch {self._epoch}"
            if broken:
                return Problem(message=f"{message}: {broken}", hint=_HINT)
            hint = "running statistics or activations overflow in evaluation: lower the learning rate"
            return Problem(message=f"{message}, though all parameters are finite", hint=hint)
        stage = next((state for state in states[:-1] if not state.sent_finite), states[-1])
        part = "loss" if stage is states[-1] else "output"
        message = (
            f"the loss is {float(result.loss)} at micro-batch {result.micro_batch} (epoch {self._epoch}); "
            f"it began in the {part} of stage {stage.index} ({', '.join(stage.nodes)})"
        )
        narrow = [name for name in ("buffer_dtype", "channel_dtype") if getattr(self._precision, name) == "float16"]
        hint = f'{" and ".join(narrow)} = "float16" ends at 65504: try "bfloat16"; or {_HINT}' if narrow else _HINT
        output = result.output_sum
        if stage is states[-1] and output is not None and bool(output.isfinite()) and bool(result.loss.isnan()):
            hint = _OF_FINITE_OUTPUT
        return Problem(message=f"{message}, where {stage.broken}" if stage.broken else message, hint=hint)


def stage_states(executors: Sequence[StageExecutor], micro_batch: int) -> list[StageState]:
    return [
        StageState(
            index=executor.program.index,
            nodes=executor.program.nodes,
            sent_finite=executor.sent_finite(micro_batch),
            broken=_broken_parameter(executor),
        )
        for executor in executors
    ]


def _broken_parameter(executor: StageExecutor) -> str | None:
    for name, module in executor.modules.items():
        for key, parameter in module.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                index, updates = executor.program.index, executor.updater.updates
                return f'{key} of node "{name}" in stage {index} is not finite after {plural(updates, "update")}'
    return None
