"""What a plan's reader should know and do: each warning names what is wrong and the key that changes it."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from attrs import evolve

from petra_graph.compiler.items import task
from petra_graph.compiler.memory import stage_memory
from petra_graph.compiler.predict import Prediction
from petra_graph.compiler.simulation.depths import least_depths, with_depths
from petra_graph.compiler.simulation.steady import tick
from petra_graph.compiler.solve.evaluate import evaluate
from petra_graph.compiler.solve.solver import merging_saves
from petra_graph.errors import shown
from petra_graph.program.memory import summed
from petra_graph.spec.model import Spec

_IDLE = 0.7
"""Devices that work less than this part of the slowest one's time, on average, are worth a word."""
_FULL = 0.9
"""Of a memory limit."""
_MANY = 64
"""Stages up to which other depths are tried, which takes a moment; with several on a device it would take longer."""
_LESS = 0.9
"""Of the staleness: only less than this is worth a word."""


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
        share = f"{held.total / 2**30:.1f} of {most / 2**30:.1f} GiB"
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
            "partition.stages higher, partition.devices lower, or replicas"
        )


def _merging(prediction: Prediction) -> Iterator[str]:
    """Say what one stage a device would save."""
    setting = prediction.setting
    used = [device for device in setting.devices if device.name in prediction.device_memory]
    stages = prediction.partition.stages
    if len(stages) <= len(used):
        return
    base = task(
        evolve(setting, devices=tuple(used)),
        stages=None,
        objective="balanced",
        memory_bytes=[None] * len(used),
        keeping_graphs=stages[-1].nodes if setting.last_stage_keeps_graph else (),
    )
    place = {device.name: index for index, device in enumerate(used)}
    costs = evaluate(
        base,
        [[base.index[name] for name in stage.nodes] for stage in stages],
        [place[stage.device] for stage in stages],
    )
    saved = merging_saves(base, costs)
    if not saved.staleness and saved.buffer_bytes <= saved.merged_buffer_bytes:
        return
    buffers = saved.buffer_bytes + saved.version_bytes
    merged = saved.merged_buffer_bytes + saved.merged_version_bytes
    yield (
        f"{len(stages)} stages on {len(used)} device{'s' if len(used) > 1 else ''}: merging each device's into one would "
        f"lower the first stage's staleness from {saved.staleness} to {saved.merged_staleness} micro-batches and buffers "
        f"from {_size(buffers)} to {_size(merged)}, at the same speed: set partition.stages = {saved.merged_stages}"
    )


def _unbalanced(prediction: Prediction, spec: Spec) -> Iterator[str]:
    """Say who limits the speed, where the others wait for long."""
    used = prediction.timing.utilisation
    mean = sum(used.values()) / len(used)
    if mean >= _IDLE:
        return
    slowest = max(used, key=lambda device: used[device])
    if used[slowest] < _IDLE:
        limiting = ", ".join(map(str, prediction.timing.limited_by))
        yield (
            f"devices work {mean:.0%} of the time: stages {limiting} wait for one another, for their messages or because "
            'they may not run further ahead; method.schedule = "auto" finds depths that hide it'
        )
        return
    stages = [program for program in prediction.programs if program.device == slowest]
    nodes = [name for program in stages for name in program.nodes]
    enough = ceil(sum(used.values()) / used[slowest])
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
        f"would do at the same speed, in {_size(held.total)} instead of {_size(now.total)}: "
        'set method.schedule = "auto"'
    )


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
