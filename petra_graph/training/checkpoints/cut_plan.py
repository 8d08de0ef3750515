"""The forwards before which a run's checkpoints are cut, known to every process without any message between them; which of them stay."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from attrs import frozen

from petra_graph.plugins.loss_and_metric import Scale, scale_of
from petra_graph.program.cut import aligned
from petra_graph.record.checkpoint import Damaged, numbers, read_manifest
from petra_graph.spec.model import Flush
from petra_graph.spec.run_tables import CheckpointSpec, Interval, interval
from petra_graph.training.prepared_run import Prepared


@frozen(kw_only=True)
class CutPlan:
    """A run's cuts, counted in forwards since its start."""

    per_epoch: int
    """Micro-batches of an epoch."""
    accumulation: int
    flush: Flush
    every: Interval | None
    evaluations: int | None
    """Epochs between evaluations, where there is a cut after each evaluation; None: evaluations need no cuts."""
    probed: tuple[int, ...]
    """Positions of an epoch's probed micro-batches: at a cut, none of them is on its way."""
    depth: int
    """The depth of the first stage, which is the deepest."""

    @classmethod
    def of(cls, prepared: Prepared) -> CutPlan:
        spec, per_epoch = prepared.spec, len(prepared.opened.batches)
        return cls(
            per_epoch=per_epoch,
            accumulation=spec.method.accumulation,
            flush=prepared.programs[0].flush,
            every=None if spec.checkpoint.every is None else interval(spec.checkpoint.every),
            evaluations=None if spec.checkpoint.best is None else spec.run.evaluate_every,
            probed=() if prepared.probe is None else tuple(prepared.probe.chosen(range(per_epoch))),
            depth=max(program.depth for program in prepared.programs),
        )

    @property
    def has_cuts(self) -> bool:
        """Whether there are cuts in a run that is not interrupted."""
        return self.every is not None or self.evaluations is not None

    def due(self, at: int) -> bool:
        """Whether there is a cut before forward `at` that the specification fixes; intervals in seconds do not fix any."""
        return at > 0 and at in _cuts(self, (at - 1) // self.per_epoch)

    def allowed(self, at: int) -> int:
        """Return the first forward from `at` on before which there may be a cut."""
        if self.flush == "window":  # nothing is in flight there, probed or not
            return aligned(at, self.per_epoch, self.accumulation, self.flush)
        epoch, done = divmod(at, self.per_epoch)
        while any(probed < done < probed + self.depth for probed in self.probed) and done < self.per_epoch:
            done += 1
        return epoch * self.per_epoch + done


@lru_cache(maxsize=4)
def _cuts(plan: CutPlan, epoch: int) -> frozenset[int]:
    """Return the cuts after the first forward of an epoch, counted from 0, up to the first of the next one."""
    start, found = epoch * plan.per_epoch, set[int]()
    every = plan.every
    if plan.evaluations is not None and (epoch + 1) % plan.evaluations == 0:
        found.add(start + plan.per_epoch)
    if every is not None and every.unit == "epochs" and (epoch + 1) % every.count == 0:
        found.add(start + plan.per_epoch)
    if every is not None and every.unit == "updates":
        updates = -(-plan.per_epoch // plan.accumulation)
        for done in range(1, updates + 1):
            at = min(start + done * plan.accumulation, start + plan.per_epoch)
            if (epoch * updates + done) % every.count == 0:
                found.add(min(plan.allowed(at), start + plan.per_epoch))
    return frozenset(found)


def which_stay(directory: Path, spec: CheckpointSpec, scales: Mapping[str, Scale]) -> list[int]:
    """Return the cuts of the checkpoints that stay: the latest ones, and the best one."""
    return numbers(directory)[: spec.keep] + ([] if spec.best is None else best_first(directory, spec, scales)[:1])


def best_first(directory: Path, spec: CheckpointSpec, scales: Mapping[str, Scale]) -> list[int]:
    """Return the cuts of the checkpoints that have the metric of `checkpoint.best`, the best first; of equals, the earliest."""
    assert spec.best is not None
    smallest = (spec.best_is or scale_of(spec.best, scales).largest_or_smallest) == "smallest"
    values: dict[int, float] = {}
    for at in reversed(numbers(directory)):
        try:
            values[at] = read_manifest(directory, at).metrics[spec.best]
        except (Damaged, KeyError):
            continue
    return sorted(values, key=lambda at: values[at] if smallest else -values[at])
