"""What a plan's reader should know and do: each warning names what is wrong and the key that changes it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from math import ceil

from attrs import evolve

from petra_graph.compiler.memory.pipeline_memory import stage_memory
from petra_graph.compiler.partition import partition
from petra_graph.compiler.place import resolved_schedule
from petra_graph.compiler.prediction import Prediction
from petra_graph.compiler.simulator.least_depths import least_depths, with_depths
from petra_graph.compiler.simulator.steady_state import tick
from petra_graph.errors import shown
from petra_graph.program.memory import summed
from petra_graph.spec.model import Spec
from petra_graph.spec.sizes import size_text

_IDLE = 0.7
"""Devices that work less than this part of the slowest one's time, on average, are worth a word."""
_FULL = 0.9
"""Of a memory limit."""
_MANY = 64
"""Stages up to which other depths are tried, which takes a moment; with several on a device it would take longer."""
_LESS = 0.9
"""Of the staleness, or of buffers: only less than this is worth a word."""
_SAME = 0.01
"""Speeds that differ by less are the same."""
_FEW = 6
"""Stages that are named one by one."""


def warnings(prediction: Prediction, spec: Spec) -> Iterator[str]:
    """Yield what to change, most important first."""
    yield from _nearly_full(prediction)
    yield from _unused(prediction)
    yield from _merging(prediction)
    yield from _unbalanced(prediction, spec)
    yield from _stale(prediction)


def _nearly_full(prediction: Prediction) -> Iterator[str]:
    for device in prediction.setting.devices:
        held = prediction.device_memory.get(device.name)
        most = device.memory_bytes or device.type.memory_bytes
        if held is None or most is None or held.total <= _FULL * most:
            continue
        share = f"{size_text(held.total)} of {size_text(most)}"
        if device.memory_bytes is None:
            yield (
                f"{device.name} needs {share} that a {device.type.name} has, and what kernels use themselves comes on "
                "top: use more devices or a smaller batch, or set partition.memory and let the planner find a cut"
            )
        else:
            yield f"{device.name} needs {share}, and what kernels use themselves comes on top: leave more room"


def _unused(prediction: Prediction) -> Iterator[str]:
    idle = [device.name for device in prediction.setting.devices if device.name not in prediction.device_memory]
    if idle:
        stages = len(prediction.programs)
        yield (
            f"{len(idle)} of {len(prediction.setting.devices)} devices get no stage, there being {stages}: set "
            "partition.stages higher, partition.devices lower, or partition.replicas"
        )


def _merging(prediction: Prediction) -> Iterator[str]:
    """Say what one stage a device would save, from the plan that it would be."""
    setting, programs = prediction.setting, prediction.programs
    if len(prediction.pipeline.hosted) == len(programs) or prediction.pipeline.flushes:
        return
    runs = [(device, list(stages)) for device, stages in groupby(programs, key=lambda program: program.device)]
    if len(runs) != len(prediction.pipeline.hosted):
        return  # devices by turns
    cuts = [[name for program in stages for name in program.nodes] for _, stages in runs]
    made = partition(setting.graph, cuts, [device for device, _ in runs])
    asked = evolve(setting, schedule="auto") if isinstance(prediction.schedule, tuple) else setting
    merged = Prediction(setting=asked, partition=made, schedule=resolved_schedule(asked, made))
    stale, less = prediction.programs[0].depth - 1, merged.programs[0].depth - 1
    buffers, fewer = _buffers(prediction), _buffers(merged)
    if less >= stale and fewer > _LESS * buffers:
        return
    now, then = prediction.timing.tick_seconds, merged.timing.tick_seconds
    speed = "at the same speed" if abs(then / now - 1) < _SAME else f"at {now / then:.2f} times the speed"
    count = len(cuts)
    yield (
        f"{len(programs)} stages on {count} device{'s' if count > 1 else ''}: merging each device's into one would lower "
        f"the first stage's staleness from {stale} to {less} micro-batches and buffers from {size_text(buffers)} to "
        f"{size_text(fewer)}, {speed}: set partition.stages = {count}"
    )


def _buffers(prediction: Prediction) -> int:
    held = summed(prediction.memory)
    return held.input_buffer + held.parameter_buffer


def _unbalanced(prediction: Prediction, spec: Spec) -> Iterator[str]:
    """Say who limits the speed, where the others wait for long."""
    used = prediction.timing.utilisation
    mean = sum(used.values()) / len(used)
    ahead = max(stage.depth for stage in prediction.pipeline.stages) > 1
    if mean >= _IDLE or prediction.pipeline.flushes or not ahead:
        return  # where nothing runs ahead, or the pipeline empties again and again, waiting is the method's own
    slowest = max(used, key=lambda device: used[device])
    if used[slowest] < _IDLE:
        limiting = prediction.timing.limited_by
        which = f"stages {', '.join(map(str, limiting))}" if 0 < len(limiting) <= _FEW else f"{len(limiting)} stages"
        yield (
            f"devices work {mean:.0%} of the time: {which} wait for one another, for their messages or because "
            'they may not run further ahead; method.schedule = "auto" finds depths that hide it'
        )
        return
    stages = [program for program in prediction.programs if program.device == slowest]
    nodes = [name for program in stages for name in program.nodes]
    enough = ceil(sum(used.values()) / used[slowest])
    if enough >= len(used):
        return
    if len(nodes) == 1:
        advice = f"{shown(nodes[0])} alone takes that long, and about {enough} devices would be as fast"
    elif isinstance(spec.partition.stages, int):
        advice = f"no cut found is better; about {enough} devices would be as fast"
    else:
        advice = f'partition.stages = {len(used)} cuts by cost (strategy "{spec.partition.strategy}")'
    label = f"stage{'s' if len(stages) > 1 else ''} {', '.join(str(program.index) for program in stages)}"
    yield f"devices work {mean:.0%} of the time, since {slowest} with {label} takes longest: {advice}"


def _stale(prediction: Prediction) -> Iterator[str]:
    """Say what the least depths at this speed would save."""
    setting, pipeline = prediction.setting, prediction.pipeline
    small = len(prediction.programs) <= _MANY and pipeline.one_stage_a_device
    if pipeline.flushes or not small or max(stage.depth for stage in pipeline.stages) == 1:
        return
    least = least_depths(pipeline)
    depths = [stage.depth for stage in pipeline.stages]
    if sum(least) - len(least) > _LESS * (sum(depths) - len(depths)):
        return
    if tick(with_depths(pipeline, least)).seconds > prediction.timing.tick_seconds * 1.01:
        return
    programs = setting.programs(prediction.partition, tuple(least))
    held = summed(stage_memory(programs, setting.costs, transport=setting.transport))
    now = summed(prediction.memory)
    yield (
        f"the first stage is {(depths[0] - 1) / setting.accumulation:.3g} updates stale; {(least[0] - 1) / setting.accumulation:.3g} "
        f"would do at the same speed, in {size_text(held.total)} instead of {size_text(now.total)}: "
        'set method.schedule = "auto"'
    )
