"""What stages will hold and how fast they will be: memory model and time model, applied to programs."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, frozen

from petra_graph.compiler.memory import device_memory, stage_memory
from petra_graph.compiler.paper import paper_accounting
from petra_graph.compiler.setting import Setting
from petra_graph.compiler.simulation.events import simulate
from petra_graph.compiler.simulation.model import Lane, Pipeline, StageSeconds, WireBytes
from petra_graph.compiler.simulation.slots import fewest_slots
from petra_graph.compiler.simulation.steady import tick
from petra_graph.compiler.simulation.timeline import Timeline
from petra_graph.compiler.simulation.timing import Timing, timing
from petra_graph.program.memory import PaperBytes, StageBytes
from petra_graph.program.method import METHODS
from petra_graph.program.partition import Partition
from petra_graph.program.stage_program import Edge, StageProgram
from petra_graph.spec.model import Schedule

TICKS_SHOWN = 6
"""Of the steady state, in a timeline."""


@frozen(kw_only=True)
class Prediction:
    """Stages, and what is predicted of them."""

    setting: Setting
    partition: Partition
    schedule: Schedule
    programs: tuple[StageProgram, ...]
    memory: tuple[StageBytes, ...]
    """Every stage's, at its largest moment."""
    device_memory: Mapping[str, StageBytes]
    paper: PaperBytes
    seconds: tuple[StageSeconds, ...]
    wire_bytes: Mapping[Edge, WireBytes]
    pipeline: Pipeline
    """With the fewest slots that cost nothing."""
    slots: Mapping[Lane, int]
    timing: Timing
    sequential_seconds: float
    """A micro-batch of `reversible-backprop`, the same stages on the same devices one after another."""

    @property
    def speedup(self) -> float:
        """Over `reversible-backprop`."""
        return self.sequential_seconds / self.timing.tick_seconds if self.timing.tick_seconds else 1.0

    def timeline(self) -> Timeline:
        """Return what happens from the start to some ticks after the pipeline is full."""
        depth = max(program.depth for program in self.programs)
        windows = -(-(depth + TICKS_SHOWN) // self.setting.accumulation)
        return simulate(self.pipeline, windows * self.setting.accumulation)


def predict(setting: Setting, partition: Partition, schedule: Schedule) -> Prediction:
    """Apply both models.

    Raises:
        Deadlock: some stage would wait for ever.
    """
    programs = setting.programs(partition, schedule)
    unbounded = setting.pipeline(programs)
    slots = fewest_slots(unbounded)
    memory = stage_memory(programs, setting.costs, transport=setting.transport)
    pipeline = evolve(unbounded, slots=slots)
    return Prediction(
        setting=setting,
        partition=partition,
        schedule=schedule,
        programs=programs,
        memory=memory,
        device_memory=device_memory(programs, memory),
        paper=paper_accounting(programs, setting.costs),
        seconds=tuple(setting.seconds(program) for program in programs),
        wire_bytes=setting.wire_bytes(programs),
        pipeline=pipeline,
        slots=slots,
        timing=timing(pipeline),
        sequential_seconds=sequential_seconds(setting, partition),
    )


def sequential_seconds(setting: Setting, partition: Partition) -> float:
    """Return what a micro-batch takes with `reversible-backprop`, the same stages one after another."""
    one_by_one = evolve(
        setting, method=METHODS["reversible-backprop"], schedule="sequential", last_stage_keeps_graph=False
    )
    return tick(one_by_one.pipeline(one_by_one.programs(partition, "sequential"))).seconds
