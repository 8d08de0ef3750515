"""The speed of a pipeline in a few numbers.

    an epoch of n micro-batches = overhead + n * tick

The overhead is the cost of filling and draining. It is read from a simulation long enough to be steady in its middle; for
pipelines too large for that, it is the time in which one micro-batch goes forward to the head and back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import frozen

from petra_graph.compiler.simulator.pipeline import Pipeline, TimedStage
from petra_graph.compiler.simulator.simulation import simulate
from petra_graph.compiler.simulator.steady_state import tick
from petra_graph.kinds.stage_facts import steady_staleness

_OPERATIONS = 150_000
"""Simulated at most, for the overhead."""


@frozen(kw_only=True)
class Timing:
    """The speed of a pipeline."""

    tick_seconds: float
    """A micro-batch, in the steady state; fills and drains of flushed windows are in it."""
    exact: bool
    """The tick is a cycle of precedences or a period of the simulation, not a mean over it."""
    limited_by: tuple[int, ...]
    """Stages whose waits for one another, or whose device alone, set the tick."""
    utilisation: Mapping[str, float]
    """For each device, the share of the steady state in which it works; two streams count as two devices."""
    exchange: Mapping[str, float]
    """For each device, the share in which it waits for the all-reduce of replicas: a part of the bubble."""
    fill_seconds: float
    """Until the head starts its first forward."""
    drain_seconds: float
    """From the end of the head's last backward to the end of everything."""
    overhead_seconds: float
    """Of a run between two drains, beyond its ticks."""
    staleness: tuple[float, ...]
    """Of every stage: the mean number of updates between a micro-batch's forward and its backward, once the pipeline is full."""

    @property
    def bubble_fraction(self) -> float:
        """The share of all devices' time in which nothing is computed, in the steady state."""
        return max(0.0, 1 - _mean(self.utilisation))

    @property
    def exchange_fraction(self) -> float:
        """The share of all devices' time in which they wait for the all-reduce of replicas."""
        return _mean(self.exchange)

    def samples_per_second(self, batch: int, replicas: int = 1) -> float:
        """Return the throughput of the steady state; `batch` is the samples in a micro-batch of one replica."""
        return batch * replicas / self.tick_seconds if self.tick_seconds else 0.0


def timing(pipeline: Pipeline) -> Timing:
    """Return the speed of a pipeline.

    Raises:
        Deadlock: some stage would wait for ever.
    """
    steady = tick(pipeline)
    windows = 2 + 2 * max(stage.depth for stage in pipeline.stages) // pipeline.accumulation
    count = windows * pipeline.accumulation
    small = 2 * count * len(pipeline.stages) <= _OPERATIONS
    timeline = simulate(pipeline, count if small else 1)
    fill, drain = timeline.fill_seconds, timeline.drain_seconds
    return Timing(
        tick_seconds=steady.seconds,
        exact=steady.exact,
        limited_by=steady.stages,
        utilisation=_shares(pipeline, steady.seconds, lambda stage: stage.seconds.per_micro_batch(stage.accumulation)),
        exchange=_shares(pipeline, steady.seconds, lambda stage: stage.seconds.exchange / stage.accumulation),
        fill_seconds=fill,
        drain_seconds=drain,
        overhead_seconds=timeline.seconds - count * steady.seconds if small else fill + drain,
        staleness=tuple(map(staleness, pipeline.stages)),
    )


def staleness(stage: TimedStage) -> float:
    """Return a stage's staleness while the pipeline is full, in updates."""
    return steady_staleness(stage.depth, stage.accumulation, stage.flush)


def _shares(pipeline: Pipeline, tick_seconds: float, of: Callable[[TimedStage], float]) -> Mapping[str, float]:
    """Return the share that the seconds of a device's stages have in its tick."""
    whole = (2 if pipeline.overlap else 1) * tick_seconds
    return {device: sum(map(of, stages)) / whole if tick_seconds else 0.0 for device, stages in pipeline.hosted.items()}


def _mean(shares: Mapping[str, float]) -> float:
    return sum(shares.values()) / len(shares)
