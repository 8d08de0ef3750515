"""The warnings about delay: what it costs, and which depths or stages would lower it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import ceil

from attrs import evolve

from petra_graph.compiler.listed_stages import partition
from petra_graph.compiler.memory.pipeline_memory import stage_memory
from petra_graph.compiler.memory_and_time import Prediction
from petra_graph.compiler.placement_search import resolved_placement
from petra_graph.compiler.simulator.least_depths import least_depths, with_depths
from petra_graph.compiler.simulator.steady_state import SAME_SPEED, tick
from petra_graph.kinds.stage_facts import steady_staleness
from petra_graph.planning.network.measure_network import MeasuredNetwork
from petra_graph.program.stage_bytes import summed
from petra_graph.program.stage_program import StageProgram
from petra_graph.units import noun, size_text

_STAGES_TRIED = 64
"""Stages up to which other depths are tried, which takes a moment."""
_SAVING = 0.9
"""Share of the staleness or of the buffers that a change must undercut."""
_HARMLESS = 1
"""Updates of delay beyond which networks without batch normalisation were found to lose."""
_LITTLE_HURT = ("muon", "soap")
"""Optimizers that were found to lose no more than a few hundredths of a nat."""
_MEASURED = (
    "a GPT of six stages, the first one 5 updates late, ended at 2.19 nats with adamw, at 1.75 with optimizer.delay.predict = true and "
    "lr_schedule.delay_epochs = 1 of 4 epochs, and at 1.62 with muon; without delay, adamw ended at 1.70 (tools/README.md)"
)


def delayed(network: MeasuredNetwork, programs: Sequence[StageProgram]) -> Iterator[str]:
    """Say what the delay means for a network without batch normalisation, and which keys shorten it."""
    k, count = programs[0].accumulation, len(programs)
    depth, stale = max(program.depth for program in programs), latest(programs)
    if stale <= _HARMLESS or any(node.batch_norm for node in network.shapes.values()):
        return
    fewer = int(1 + _HARMLESS * k * (count - 1) / (depth - 1))
    # "auto" may have as much delay as "1f1b", or more, which `less_depth` finds out.
    keys = ['method.schedule = "1f1b" (half of it) or "auto"'] if network.schedule == "lockstep" else []
    keys += [f"partition.stages = {fewer}"] if 1 < fewer < count else []
    bounded = network.spec.method.max_staleness is not None
    fewer_updates = f"max_staleness = {_HARMLESS:g}" if bounded else f"accumulation = {ceil((depth - 1) / _HARMLESS)}"
    keys += [f"method.{fewer_updates} (with fewer updates an epoch)"]
    plugin = network.optimizer.plugin
    known = plugin.is_first_party and plugin.name in _LITTLE_HURT
    remedy = f"{plugin.name} suffers little from it" if known else f'{_MEASURED}: set optimizer.name = "muon"'
    yield (
        f"gradients reach the first stage {stale:.3g} updates late, and no node has batch normalisation: delay hurts such networks most; "
        f"{remedy}. To reduce the delay: {'; '.join(keys)}"
    )


def latest(programs: Sequence[StageProgram]) -> float:
    """Return the delay of the most delayed stage, in updates while the pipeline is full."""
    return max(steady_staleness(program.depth, program.accumulation, program.flush) for program in programs)


def merging(prediction: Prediction) -> Iterator[str]:
    """Compare with one stage a device, from that placement's own prediction."""
    inputs, programs = prediction.inputs, prediction.programs
    if len(prediction.pipeline.hosted) == len(programs) or prediction.pipeline.flushes:
        return
    runs = [(device, list(stages)) for device, stages in groupby(programs, key=lambda program: program.device)]
    if len(runs) != len(prediction.pipeline.hosted):
        return  # a device hosts stages that are not neighbours
    cuts = [[name for program in stages for name in program.nodes] for _, stages in runs]
    stages = partition(inputs.graph, cuts, [device for device, _ in runs])
    auto = isinstance(prediction.placement.schedule, tuple)
    inputs = evolve(inputs, schedule="auto" if auto else inputs.schedule)
    merged = Prediction(inputs=inputs, placement=resolved_placement(inputs, stages))
    stale, less = prediction.programs[0].depth - 1, merged.programs[0].depth - 1
    buffers, fewer = _buffers(prediction), _buffers(merged)
    if less >= stale and fewer >= _SAVING * buffers:
        return
    count = len(cuts)
    yield (
        f"{len(programs)} stages on {count} {noun(count, 'device')}: merging {'them' if count == 1 else 'the stages of each device'} into one would cut "
        + (f"the first stage's staleness from {stale} to {less} micro-batches and " if less < stale else "")
        + f"buffers from {size_text(buffers)} to {size_text(fewer)}, at {_speed(prediction, merged)}: set partition.stages = {count}"
    )


def _speed(now: Prediction, then: Prediction) -> str:
    ratio = now.timing.tick_seconds / then.timing.tick_seconds
    return "the same speed" if abs(ratio - 1) < SAME_SPEED else f"{ratio:.2f} times the speed"


def _buffers(prediction: Prediction) -> int:
    held = summed(prediction.memory)
    return held.input_buffer + held.parameter_buffer


def less_depth(prediction: Prediction) -> Iterator[str]:
    """Name the least depths at the same speed."""
    inputs, pipeline = prediction.inputs, prediction.pipeline
    if len(prediction.programs) > _STAGES_TRIED or not pipeline.one_stage_a_device or pipeline.flushes:
        return
    if max(stage.depth for stage in pipeline.stages) == 1:
        return
    least = least_depths(pipeline)
    depths = [stage.depth for stage in pipeline.stages]
    if sum(least) - len(least) > _SAVING * (sum(depths) - len(depths)):
        return
    if tick(with_depths(pipeline, least)).seconds > prediction.timing.tick_seconds * (1 + SAME_SPEED):
        return
    programs = inputs.programs(prediction.placement, least)
    held = summed(stage_memory(programs, inputs.costs, transport=inputs.transport))
    now = summed(prediction.memory)
    stale = (depths[0] - 1) / inputs.accumulation
    yield (
        f"the first stage is {stale:.3g} {noun(stale, 'update')} stale; {(least[0] - 1) / inputs.accumulation:.3g} "
        f"would be enough for the same speed, in {size_text(held.total)} instead of {size_text(now.total)}: "
        'set method.schedule = "auto"'
    )
