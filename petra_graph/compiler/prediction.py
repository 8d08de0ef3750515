"""What stages will hold and how fast they will be: memory model and time model, applied to programs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from attrs import define, evolve

from petra_graph.compiler.memory.paper import paper_accounting
from petra_graph.compiler.memory.pipeline_memory import device_memory, stage_memory
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.simulator.pipeline import MessageBytes, Pipeline, StageSeconds
from petra_graph.compiler.simulator.simulation import simulate
from petra_graph.compiler.simulator.steady_state import tick
from petra_graph.compiler.simulator.timeline import Timeline
from petra_graph.compiler.simulator.timing import Timing, timing
from petra_graph.program.channels import ChannelKey, Edge
from petra_graph.program.memory import PaperBytes, StageBytes
from petra_graph.program.method import METHODS
from petra_graph.program.partition import Partition
from petra_graph.program.stage_program import StageProgram
from petra_graph.spec.model import Schedule

TICKS_SHOWN = 6
"""Of the steady state, in a timeline."""


@define(kw_only=True, frozen=True, eq=False, slots=False)
class Prediction:
    """Stages, and what the models say of them; each model is asked when its answer is."""

    setting: PlannerInputs
    partition: Partition
    schedule: Schedule

    @cached_property
    def programs(self) -> tuple[StageProgram, ...]:
        """The stages' programs."""
        return self.setting.programs(self.partition, self.schedule)

    @cached_property
    def memory(self) -> tuple[StageBytes, ...]:
        """Every stage's, at its largest moment."""
        return stage_memory(self.programs, self.setting.costs, transport=self.setting.transport)

    @cached_property
    def device_memory(self) -> Mapping[str, StageBytes]:
        """Every used device's."""
        return device_memory(self.programs, self.memory)

    @cached_property
    def paper(self) -> PaperBytes:
        """What the paper counts."""
        return paper_accounting(self.programs, self.setting.costs)

    @cached_property
    def seconds(self) -> tuple[StageSeconds, ...]:
        """What every stage's operations take."""
        return tuple(self.setting.seconds(program) for program in self.programs)

    @cached_property
    def channel_bytes(self) -> Mapping[Edge, MessageBytes]:
        """The sizes of messages between stages."""
        return self.setting.channel_bytes(self.programs)

    @cached_property
    def pipeline(self) -> Pipeline:
        """The time model's, whose channels have no bound."""
        return self.setting.pipeline(self.programs)

    @cached_property
    def capacity(self) -> Mapping[ChannelKey, int]:
        """The capacity of every channel between two devices."""
        apart = {key for key, timing in self.pipeline.channels.items() if timing.link is not None}
        found = {channel.key: channel.capacity for program in self.programs for channel in program.channels}
        return {key: count for key, count in found.items() if key in apart}

    @cached_property
    def timing(self) -> Timing:
        """Its speed.

        Raises:
            Deadlock: some stage would wait for ever.
        """
        return timing(self.pipeline)

    @cached_property
    def sequential_seconds(self) -> float:
        """A micro-batch of `reversible-backprop`, the same stages on the same devices one after another."""
        return sequential_seconds(self.setting, self.partition)

    @property
    def speedup(self) -> float:
        """Over `reversible-backprop`."""
        return self.sequential_seconds / self.timing.tick_seconds if self.timing.tick_seconds else 1.0

    def timeline(self) -> Timeline:
        """Return what happens from the start to some ticks after the pipeline is full, with a run's capacities."""
        depth = max(program.depth for program in self.programs)
        windows = -(-(depth + TICKS_SHOWN) // self.setting.accumulation)
        return simulate(self.pipeline.with_capacity(self.capacity), windows * self.setting.accumulation)


def sequential_seconds(setting: PlannerInputs, partition: Partition) -> float:
    """Return what a micro-batch takes with `reversible-backprop`, the same stages one after another."""
    one_by_one = evolve(
        setting, method=METHODS["reversible-backprop"], schedule="sequential", last_stage_keeps_graph=False
    )
    return tick(one_by_one.pipeline(one_by_one.programs(partition, "sequential"))).seconds
