"""One evaluation of a split's samples by the stages of this process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from petra_graph.errors import RunFailed, shown, suggestion
from petra_graph.executor.deferred_reads import MOST
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.record.weights import SEPARATOR
from petra_graph.runtime.scheduler.scheduler import Scheduler
from petra_graph.training.data.micro_batches import MicroBatches, require_finite_samples
from petra_graph.training.loop.meters import Meters, MetricsOfEvaluation, split_undefined
from petra_graph.training.loop.not_finite import NotFinite
from petra_graph.training.prepared_run import Prepared


def evaluate(
    prepared: Prepared,
    scheduler: Scheduler,
    batches: MicroBatches,
    split: str,
    *,
    epoch: int,
    warn: Callable[[str], None],
    show: Callable[[Tensor, Any], None] | None = None,
) -> Mapping[str, float]:
    """Return the means and metrics over a split; zeros where the head is in another process.

    Args:
        prepared: the run.
        scheduler: of this process's stages, which have the weights to evaluate.
        batches: of the split.
        split: "validation" or "test".
        epoch: of the weights, for messages.
        warn: is told of metrics that are undefined.
        show: is given the head's outputs and targets of every batch; None: nobody sees them.

    Raises:
        Interrupted, Failed, RunFailed: as `Scheduler.train`; or the loss is not finite.
    """
    meters, metrics = Meters(prepared.loss), MetricsOfEvaluation.of(prepared.checked.metrics)
    for number, result in enumerate(scheduler.evaluate(batches), start=1):
        meters.add(result)
        if number % MOST == 0:
            meters.read()
        if result.evaluated is not None:
            metrics.update(result.evaluated.outputs, result.evaluated.targets)
            if show is not None:
                show(result.evaluated.outputs, result.evaluated.targets)
    meters.expect_targets(f"{split} data")

    means = meters.means()
    if not math.isfinite(means.get("loss", 0.0)):
        require_finite_samples(batches, range(len(batches)))
        raise NotFinite(scheduler.executors, means["loss"], epoch)
    if not meters.samples:  # the head is in another process
        return means
    found, best = metrics.values(means), prepared.spec.checkpoint.best
    recorded = [f"{split}/{name}" for name in (*means, *found)]
    if best is not None and best.startswith(f"{split}/") and best not in recorded:
        message = f"checkpoint.best = {shown(best)} is not a value of this run's evaluations"
        raise RunFailed(message, suggestion(best, recorded))
    values, others = split_undefined(found)
    for text in others:
        warn(f"{split}/{text}, which is not recorded: the metric is undefined on these targets")
    return {**means, **values}


def load_weights(executors: Iterable[StageExecutor], weights: Mapping[str, Tensor]) -> None:
    """Give stages these weights, by their names in the file of weights."""
    for node, module in (pair for executor in executors for pair in executor.modules.items()):
        for key, tensor in module.state_dict().items():
            tensor.copy_(weights[f"{node}{SEPARATOR}{key}"])
