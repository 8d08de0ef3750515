"""A loss that is not finite, and the parameters that are not, in whichever process they are.

The head checks its loss before any gradient of it flows, so a parameter that is not finite became so in an earlier update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from petra_graph.errors import Problem, RunFailed
from petra_graph.executor.head import HeadResult
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.units import plural

_HINT = "lower the learning rate, lengthen the warm-up, clip gradients, or use fewer stages or a smaller staleness"

_OF_FINITE_OUTPUT = (
    "the head's output is finite, so the loss makes it nan: where it passes over all targets (-100), let its method target_weight "
    "say so"
)


class NotFinite(RunFailed):
    """A loss is not finite, in training or in an evaluation."""

    def __init__(self, executors: Sequence[StageExecutor], result: HeadResult | float, epoch: int) -> None:
        """Name what is not finite among the stages of this process.

        `result` is the head's in training, or an evaluation's loss, after training losses that were finite.
        """
        self._result, self._epoch = result, epoch
        super().__init__(self.problem(list(broken_parameters(executors))))

    def problem(self, broken: Sequence[str]) -> Problem:
        """Return the problem with the first of these parameters, which are in the order of stages."""
        result, hint = self._result, _HINT
        if isinstance(result, HeadResult):
            message = f"the loss is {float(result.loss)} at micro-batch {result.micro_batch} (epoch {self._epoch})"
            output = result.output_sum
            if not broken and output is not None and bool(output.isfinite()) and bool(result.loss.isnan()):
                hint = _OF_FINITE_OUTPUT
        else:
            message = f"the evaluation loss is {result} after epoch {self._epoch}"
        if broken:
            return Problem(message=f"{message}: {broken[0]}", hint=hint)
        return Problem(message=f"{message}, though all parameters are finite", hint=hint)


def broken_parameters(executors: Sequence[StageExecutor]) -> Iterator[str]:
    """Yield a clause for each stage with a parameter that is not finite."""
    for executor in executors:
        index, updates = executor.program.index, executor.updater.updates
        for name, module in executor.modules.items():
            broken = (key for key, one in module.named_parameters() if not bool(torch.isfinite(one).all()))
            if (key := next(broken, None)) is not None:
                yield f'{key} of node "{name}" in stage {index} is not finite after {plural(updates, "update")}'
                break
