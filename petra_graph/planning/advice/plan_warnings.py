"""The warnings of a plan: each names a weakness and the key of the specification that changes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

import attrs

from petra_graph.compiler.memory_and_time import Prediction
from petra_graph.compiler.profile_check import taken_under_load
from petra_graph.errors import shown
from petra_graph.graph.node_graph import INPUT
from petra_graph.graph_passes import MeasuredGraph
from petra_graph.planning.advice.delay_corrections import corrections_without_effect
from petra_graph.planning.advice.delay_warnings import delayed, latest, less_depth, merging
from petra_graph.planning.advice.plan_assumptions import device_guesses
from petra_graph.planning.network.graph_passes import sentences
from petra_graph.planning.network.measure_network import MeasuredNetwork
from petra_graph.planning.network.shared_across_stages import across_stages
from petra_graph.program.stage_program import Segment, StageProgram
from petra_graph.spec.intervals import interval
from petra_graph.spec.model import Spec
from petra_graph.units import byte_count, noun, plural, size_text

_STATE = "set partition.device_type, or partition.profile, which `petra-graph profile` makes there"
_IDLE = 0.7
"""Mean utilisation below which a warning says why devices wait."""
_FULL = 0.9
"""Share of a memory limit above which a warning says so."""
_NAMED = 6
"""Stages that are listed one by one, at most."""


def warnings(prediction: Prediction, network: MeasuredNetwork) -> Iterator[str]:
    """Yield the warnings, most important first."""
    spec = network.spec
    yield from (f"{guess}: {_STATE}" for guess in device_guesses(prediction.inputs))
    if (profile := prediction.inputs.profile) is not None and (loaded := taken_under_load(profile)):
        yield loaded
    yield from warnings_without_prediction(network, prediction.programs)
    yield from _above_the_device(prediction, spec)
    yield from _nearly_full(prediction)
    yield from _unused(prediction)
    yield from merging(prediction)
    yield from _exchanging(prediction, spec)
    yield from _unbalanced(prediction, spec)
    yield from less_depth(prediction)


def warnings_without_prediction(network: MeasuredNetwork, programs: Sequence[StageProgram]) -> Iterator[str]:
    """Yield the warnings that need no prediction, for runs that begin without one."""
    for text in across_stages(network.shapes, [program.nodes for program in programs]):
        yield f"{text}: partition.untie gives each a copy of its own, so this is another model than the tied one"
    measured = MeasuredGraph(graph=network.graph, shapes=network.shapes)
    for one in network.passes:
        yield from sentences(one, "warnings", measured)
    yield from delayed(network, programs)
    yield from _beyond_the_run(network, latest(programs))
    yield from _without_effect(network, programs)


def _beyond_the_run(network: MeasuredNetwork, stale: float) -> Iterator[str]:
    """Name epochs that the specification gives and the run never reaches; `stale` is the delay of the most delayed stage."""
    spec, epochs = network.spec, network.spec.run.epochs
    length = f"the run's {epochs} {noun(epochs, 'epoch')}"
    warmup = spec.lr_schedule.warmup_epochs
    if warmup >= epochs:
        yield (
            f"the warm-up of {warmup:g} {noun(warmup, 'epoch')} takes all of {length}, and the learning rate only reaches "
            f"{min(1.0, epochs / warmup):.0%} of its value at their end: set lr_schedule.warmup_epochs lower, or run.epochs higher"
        )
    rise = spec.lr_schedule.delay_epochs
    if rise > epochs and stale > 1:
        yield (
            f"the learning rates of delayed stages rise over {rise:g} epochs, longer than {length}, and the first stage's only reaches "
            f"{stale ** (epochs / rise - 1):.0%} of its value at their end: set lr_schedule.delay_epochs lower, or run.epochs higher"
        )
    options = network.lr_schedule.options
    for attribute in attrs.fields(type(options)):
        value = getattr(options, attribute.name)
        listed = value if isinstance(value, tuple) else (value,)
        late = [item for item in listed if isinstance(item, int | float) and item >= epochs]
        if attribute.metadata.get("unit") == "epochs" and late:
            yield (
                f"{attribute.name} {', '.join(f'{item:g}' for item in late)} of {network.lr_schedule.plugin} "
                f"{'comes' if len(late) == 1 else 'come'} after the end of {length}, without effect: set "
                f"lr_schedule.options.{attribute.name}, or run.epochs"
            )
    every = None if spec.checkpoint.every is None else interval(spec.checkpoint.every)
    updates = None if network.micro_batches is None else epochs * ceil(network.micro_batches / spec.method.accumulation)
    ends = {"epochs": epochs, "updates": updates}.get("" if every is None else every.unit)
    if every is not None and ends is not None and every.count > ends:
        yield (
            f"checkpoint.every = {shown(spec.checkpoint.every)} is longer than the run of {ends:,} "
            f"{noun(ends, every.unit.removesuffix('s'))}: no checkpoint is written before its end, except at an interruption"
        )


def _without_effect(network: MeasuredNetwork, programs: Sequence[StageProgram]) -> Iterator[str]:
    """Name keys that something else in the specification leaves without a use."""
    spec, precision = network.spec, network.spec.precision
    floats = network.facts.dtype.startswith("float")
    buffers = [
        segment
        for program in programs
        for segment in program.segments
        if _stores(segment) and (floats or any(each.edge.producer != INPUT for each in segment.inputs))
    ]
    stored = [
        key
        for key, default in (("buffer_dtype", "as-streams"), ("buffer_device", "stage"))
        if getattr(precision, key) != default
    ]
    if stored and not any(_stores(segment) for program in programs for segment in program.segments):
        yield from (f"precision.{key} changes nothing: no node keeps its input for its backward" for key in stored)
    elif precision.buffer_dtype != "as-streams" and not buffers:
        yield f"precision.buffer_dtype changes nothing: the buffers only hold samples of {network.facts.dtype}"
    if precision.channel_dtype != "as-streams" and len(programs) == 1:
        yield "precision.channel_dtype changes nothing: there is only one stage, so there are no channels"
    if spec.lr_schedule.delay_epochs and latest(programs) <= 1:
        yield "lr_schedule.delay_epochs changes nothing: no stage's gradients are more than one update late"
    if spec.partition.sync_batch_norm and spec.partition.replicas == 1:
        yield "partition.sync_batch_norm changes nothing: there is only one replica"
    if spec.checkpoint.best_is is not None and spec.checkpoint.best is None:
        yield "checkpoint.best_is changes nothing: checkpoint.best names no metric"
    yield from corrections_without_effect(network, programs)


def _stores(segment: Segment) -> bool:
    """Whether a segment's input waits for its backward; the head's follows at once."""
    return segment.keeps == "input" and segment.kind != "head"


def _above_the_device(prediction: Prediction, spec: Spec) -> Iterator[str]:
    """Say where a stated limit is more than a device has, which then is the limit."""
    stated = spec.partition.memory
    sizes = [byte_count(size) for size in ((stated,) if isinstance(stated, str) else stated or ())]
    devices = prediction.inputs.devices
    for kind in dict.fromkeys(
        device.type
        for device, size in zip(devices, sizes * len(devices), strict=False)
        if device.memory_bytes == device.type.memory_bytes and (device.memory_bytes or size) < size
    ):
        yield (
            f"partition.memory = {shown(stated)} is more than {kind.name} has: the limit is {size_text(kind.memory_bytes or 0)}, "
            "and the kernels themselves need part of that: set it lower"
        )


def _nearly_full(prediction: Prediction) -> Iterator[str]:
    for device in prediction.inputs.devices:
        held = prediction.device_memory.get(device.name)
        most = device.memory_bytes or device.type.memory_bytes
        if held is None or most is None or held.total <= _FULL * most:
            continue
        share = f"{size_text(held.total)} of {size_text(most)}"
        if device.memory_bytes is None:
            yield (
                f"{device.name} needs {share} that {device.type.name} has, and the kernels themselves need memory "
                "on top of that: use more devices or a smaller batch, or set partition.memory and let the planner find a cut"
            )
        else:
            yield f"{device.name} needs {share}, and the kernels themselves need memory on top of that: leave more room"


def _unused(prediction: Prediction) -> Iterator[str]:
    idle = [device.name for device in prediction.inputs.devices if device.name not in prediction.device_memory]
    if idle:
        stages = len(prediction.programs)
        yield (
            f"{len(prediction.inputs.devices)} devices for {plural(stages, 'stage')} leave {len(idle)} of them idle: set "
            "partition.stages higher, partition.devices lower, or partition.replicas"
        )


def _exchanging(prediction: Prediction, spec: Spec) -> Iterator[str]:
    """Say what part of the time the replicas wait for one another."""
    share = prediction.timing.exchange_fraction
    if share > 1 - _IDLE:
        every = prediction.inputs.accumulation
        longer = "accumulation higher" if spec.method.max_staleness is None else "max_staleness lower"
        yield (
            f"devices wait {share:.0%} of the time for the all-reduce of {prediction.inputs.replicas} replicas, once in "
            f"{every} {noun(every, 'micro-batch', 'es')}: set method.{longer}, or partition.replicas lower"
        )


def _unbalanced(prediction: Prediction, spec: Spec) -> Iterator[str]:
    """Name the stages or the device that limits the speed, where the others wait for long."""
    exchange = prediction.timing.exchange
    used = {device: share + exchange[device] for device, share in prediction.timing.utilisation.items()}
    mean = sum(used.values()) / len(used)
    ahead = max(stage.depth for stage in prediction.pipeline.stages) > 1
    if mean >= _IDLE or prediction.pipeline.flushes or not ahead:
        return  # a method without forwards ahead, or one that flushes, waits by definition
    slowest = max(used, key=lambda device: used[device])
    if used[slowest] < _IDLE:
        limiting = prediction.timing.limited_by
        which = f"stages {', '.join(map(str, limiting))}" if 0 < len(limiting) <= _NAMED else f"{len(limiting)} stages"
        yield (
            f"devices work {mean:.0%} of the time: {which} wait for each other's messages, or their depths "
            'do not allow another forward; method.schedule = "auto" finds depths that hide the wait'
        )
        return
    stages = [program for program in prediction.programs if program.device == slowest]
    nodes = [name for program in stages for name in program.nodes]
    enough = ceil(sum(used.values()) / used[slowest])
    if enough >= len(used):
        return
    if len(nodes) == 1:
        remedy = f"{shown(nodes[0])} alone takes that long, and about {plural(enough, 'device')} would be as fast"
    elif spec.partition.stages == "auto" or isinstance(spec.partition.stages, int):
        remedy = f"no better cut was found; about {plural(enough, 'device')} would be as fast"
    else:
        remedy = f'partition.stages = {len(used)} cuts by cost (strategy "{spec.partition.strategy}")'
    label = f"{noun(len(stages), 'stage')} {', '.join(str(program.index) for program in stages)}"
    yield f"devices work {mean:.0%} of the time, because {slowest} with {label} takes longest: {remedy}"
