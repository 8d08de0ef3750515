"""The table `[probe]`: a probe of all stages of a run, at as many micro-batches of each epoch as it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from petra_graph.errors import Problem
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.record.recorded_run import quantity_and_stage
from petra_graph.spec.run_tables import ProbeSpec
from petra_graph.training.run_probe import Begin, Record
from petra_graph.units import noun
from petra_graph_studies.fidelity.probe import Probe

_LOST = 0.5
"""The relative error of a reconstruction above which little of the input is left in it."""


class ProbedRun:
    """Implements `petra_graph.training.run_probe.RunProbe`."""

    def __init__(self, spec: ProbeSpec) -> None:
        self._spec = spec

    def problems(self, micro_batches: int | None, processes: int) -> Iterator[Problem]:
        if processes > 1:
            message = f"a probe looks at all stages at once, and {processes} processes share them"
            yield Problem(message=message, hint="run in one process, or leave [probe] out", path=("probe",))
        elif micro_batches is not None and self._spec.per_epoch > micro_batches:
            epoch = f"an epoch has {micro_batches} {noun(micro_batches, 'micro-batch', 'es')}"
            message = f"{epoch}, and {self._spec.per_epoch} are to be probed"
            yield Problem(message=message, hint=f"make it {micro_batches} or less", path=("probe", "per_epoch"))

    def chosen(self, micro_batches: range) -> list[int]:
        return spread(micro_batches, self._spec.per_epoch)

    def observe(self, stages: Sequence[StageExecutor], record: Record, warn: Callable[[str], None]) -> Begin:
        warned = False

        def report(micro_batch: int, values: Mapping[str, float]) -> None:
            nonlocal warned
            record(micro_batch, values)
            if not warned and (text := _warning(values, stages)):
                warned = True
                warn(text)

        probe = Probe(stages, report)

        def begin(micro_batches: range, at: int | None, filled: int) -> None:
            probe.begin(micro_batches, self.chosen(micro_batches), at, filled)

        return begin


def spread(micro_batches: range, times: int) -> list[int]:
    """Return `times` of the micro-batches, the middles of equal parts; all, if there are fewer."""
    count = len(micro_batches)
    times = min(times, count)
    return [micro_batches[(2 * part + 1) * count // (2 * times)] for part in range(times)]


def _warning(values: Mapping[str, float], stages: Sequence[StageExecutor]) -> str:
    """Return a warning about reconstructions that have lost their inputs; "" if none has."""
    lost = dict(_lost(values))
    if not lost:
        return ""
    worst = max(lost, key=lambda stage: lost[stage])
    others = f", and {len(lost) - 1} more like it" * (len(lost) > 1)
    nodes = ", ".join(stages[worst - 1].program.nodes)
    return (
        f"the probe sees gradients at inputs that were reconstructed wrongly: that of stage {worst} ({nodes}) is {lost[worst]:.0%} off"
        f"{others}. Either an inverse does not undo its forward (see `petra-graph check` of its block), or parameters change too much "
        "within the delay: lower the learning rate, lengthen the warm-up, or use fewer stages"
    )


def _lost(values: Mapping[str, float]) -> Iterator[tuple[int, float]]:
    for name, value in values.items():
        found = quantity_and_stage(name)
        if found is not None and found[0] == "reconstruction_error" and not value < _LOST:
            yield found[1], value
