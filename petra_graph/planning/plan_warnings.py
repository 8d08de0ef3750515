"""The warnings of a plan: each names a weakness and the key of the specification that changes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import ceil, inf

import attrs
from attrs import evolve

from petra_graph.compiler.listed_stages import partition
from petra_graph.compiler.memory.pipeline_memory import stage_memory
from petra_graph.compiler.memory_and_time import Prediction
from petra_graph.compiler.placement_search import resolved_placement
from petra_graph.compiler.profile_check import taken_under_load
from petra_graph.compiler.simulator.least_depths import least_depths, with_depths
from petra_graph.compiler.simulator.split_orders import least_orders, with_orders
from petra_graph.compiler.simulator.steady_state import tick
from petra_graph.errors import SpecError, shown
from petra_graph.graph.node_graph import INPUT
from petra_graph.kinds.stage_facts import steady_staleness
from petra_graph.planning.delay_corrections import corrections_without_effect
from petra_graph.planning.measure_network import MeasuredNetwork
from petra_graph.planning.plan_assumptions import device_guesses
from petra_graph.planning.split_or_whole import SAME_SPEED
from petra_graph.program.stage_bytes import summed
from petra_graph.program.stage_program import Segment, StageProgram
from petra_graph.spec.intervals import interval
from petra_graph.spec.model import Spec
from petra_graph.units import byte_count, noun, plural, size_text

_STATE = "set partition.device_type, or partition.profile, which `petra-graph profile` makes there"
_IDLE = 0.7
"""Mean utilisation below which a warning says why devices wait."""
_FULL = 0.9
"""Share of a memory limit above which a warning says so."""
_STAGES_TRIED = 64
"""Stages up to which other depths are tried, which takes a moment."""
_SAVING = 0.9
"""Share of the staleness or of the buffers that a change must undercut."""
_NAMED = 6
"""Stages that are listed one by one, at most."""
_HARMLESS = 1
"""Updates of delay beyond which networks without batch normalisation were found to lose."""
_MEASURED = (
    "a GPT of six stages, the first one 5 updates late, ended at 2.19 nats with adamw and at 1.62 with muon; without delay, adamw ended at "
    "1.70 (tools/README.md)"
)


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
    yield from _merging(prediction)
    yield from _exchanging(prediction)
    yield from _unbalanced(prediction, spec)
    yield from _stale(prediction)
    yield from _later_than_split(prediction, network)


def warnings_without_prediction(network: MeasuredNetwork, programs: Sequence[StageProgram]) -> Iterator[str]:
    """Yield the warnings that need no prediction, for runs that begin without one."""
    yield from _delayed(network, programs)
    yield from _beyond_the_run(network, _latest(programs))
    yield from _without_effect(network, programs)


def _delayed(network: MeasuredNetwork, programs: Sequence[StageProgram]) -> Iterator[str]:
    """Say what the delay means for a network without batch normalisation, and which keys shorten it."""
    k, count = programs[0].accumulation, len(programs)
    depth, stale = max(program.depth for program in programs), _latest(programs)
    if stale <= _HARMLESS or any(node.batch_norm for node in network.shapes.values()):
        return
    names = {"lockstep": '"1f1b" (half of it) or "auto"', "1f1b": '"auto"'}
    schedule = names.get(network.schedule) if isinstance(network.schedule, str) else None
    fewer = int(1 + _HARMLESS * k * (count - 1) / (depth - 1))
    keys = [] if schedule is None else [f"method.schedule = {schedule}"]
    keys += [f"partition.stages = {fewer}"] if 1 < fewer < count else []
    bounded = network.spec.method.max_staleness is not None
    fewer_updates = f"max_staleness = {_HARMLESS:g}" if bounded else f"accumulation = {ceil((depth - 1) / _HARMLESS)}"
    keys += [f"method.{fewer_updates} (with fewer updates an epoch)"]
    with_muon = network.optimizer.plugin.is_first_party and network.optimizer.plugin.name == "muon"
    remedy = "muon suffers least from it" if with_muon else f'{_MEASURED}: set optimizer.name = "muon"'
    yield (
        f"gradients reach the first stage {stale:.3g} updates late, and no node has batch normalisation: delay hurts such networks most; "
        f"{remedy}. To reduce the delay: {'; '.join(keys)}"
    )


def _latest(programs: Sequence[StageProgram]) -> float:
    """Return the delay of the most delayed stage, in updates while the pipeline is full."""
    return max(steady_staleness(program.depth, program.accumulation, program.flush) for program in programs)


def _beyond_the_run(network: MeasuredNetwork, latest: float) -> Iterator[str]:
    """Name epochs that the specification gives and the run never reaches; `latest` is the delay of the most delayed stage."""
    spec, epochs = network.spec, network.spec.run.epochs
    length = f"the run's {epochs} {noun(epochs, 'epoch')}"
    warmup = spec.lr_schedule.warmup_epochs
    if warmup >= epochs:
        yield (
            f"the warm-up of {warmup:g} {noun(warmup, 'epoch')} takes all of {length}, and the learning rate only reaches "
            f"{min(1.0, epochs / warmup):.0%} of its value at their end: set lr_schedule.warmup_epochs lower, or run.epochs higher"
        )
    rise = spec.lr_schedule.delay_epochs
    if rise > epochs and latest > 1:
        yield (
            f"the learning rates of delayed stages rise over {rise:g} epochs, longer than {length}, and the first stage's only reaches "
            f"{latest ** (epochs / rise - 1):.0%} of its value at their end: set lr_schedule.delay_epochs lower, or run.epochs higher"
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
    if spec.lr_schedule.delay_epochs and _latest(programs) <= 1:
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
            f"partition.memory = {shown(stated)} is more than a {kind.name} has: the limit is {size_text(kind.memory_bytes or 0)}, "
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
                f"{device.name} needs {share} that a {device.type.name} has, and the kernels themselves need memory "
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


def _merging(prediction: Prediction) -> Iterator[str]:
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
    split = prediction.placement.words is not None
    inputs = evolve(inputs, schedule="auto" if auto else inputs.schedule, split_backward=split)
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


def _exchanging(prediction: Prediction) -> Iterator[str]:
    """Say what part of the time the replicas wait for one another."""
    share = prediction.timing.exchange_fraction
    if share > 1 - _IDLE:
        every = prediction.inputs.accumulation
        yield (
            f"devices wait {share:.0%} of the time for the all-reduce of {prediction.inputs.replicas} replicas, once in "
            f"{every} {noun(every, 'micro-batch', 'es')}: set method.accumulation higher, or partition.replicas lower"
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
    elif isinstance(spec.partition.stages, int):
        remedy = f"no better cut was found; about {plural(enough, 'device')} would be as fast"
    else:
        remedy = f'partition.stages = {len(used)} cuts by cost (strategy "{spec.partition.strategy}")'
    label = f"{noun(len(stages), 'stage')} {', '.join(str(program.index) for program in stages)}"
    yield f"devices work {mean:.0%} of the time, because {slowest} with {label} takes longest: {remedy}"


def _stale(prediction: Prediction) -> Iterator[str]:
    """Compare with the least depths at the same speed."""
    inputs, pipeline = prediction.inputs, prediction.pipeline
    if not _tries_depths(prediction) or max(stage.depth for stage in pipeline.stages) == 1:
        return
    orders = least_orders(pipeline) if pipeline.split else None
    least = least_depths(pipeline) if orders is None else orders.depths
    depths = [stage.depth for stage in pipeline.stages]
    if sum(least) - len(least) > _SAVING * (sum(depths) - len(depths)):
        return
    better = with_depths(pipeline, least) if orders is None else with_orders(pipeline, orders)
    if tick(better).seconds > prediction.timing.tick_seconds * (1 + SAME_SPEED):
        return
    programs = inputs.programs(prediction.placement, least, None if orders is None else orders.words)
    held = summed(stage_memory(programs, inputs.costs, transport=inputs.transport))
    now = summed(prediction.memory)
    stale = (depths[0] - 1) / inputs.accumulation
    yield (
        f"the first stage is {stale:.3g} {noun(stale, 'update')} stale; {(least[0] - 1) / inputs.accumulation:.3g} "
        f"would be enough for the same speed, in {size_text(held.total)} instead of {size_text(now.total)}: "
        'set method.schedule = "auto"'
        + (" and method.split_backward = true" if isinstance(inputs.split_backward, tuple) else "")
    )


def _tries_depths(prediction: Prediction) -> bool:
    pipeline = prediction.pipeline
    return len(prediction.programs) <= _STAGES_TRIED and pipeline.one_stage_a_device and not pipeline.flushes


def _later_than_split(prediction: Prediction, network: MeasuredNetwork) -> Iterator[str]:
    """Compare with split backwards on the same stages and devices, under the least depths at full speed."""
    method, late = network.spec.method, _latest(prediction.programs)
    decided = (
        method.split_backward is not False or method.max_staleness is not None or isinstance(network.schedule, tuple)
    )
    if decided or late <= _HARMLESS or not _tries_depths(prediction):
        return
    try:
        variant = network.variant(evolve(network.spec, method=evolve(method, schedule="auto", split_backward=True)))
    except SpecError:  # This method has no split backwards.
        return
    inputs = variant.planner_inputs(prediction.placement.devices, overlap=prediction.inputs.overlap)
    split = Prediction(inputs=inputs, placement=resolved_placement(inputs, prediction.placement))
    whole = min(max(least_depths(prediction.pipeline)), max(program.depth for program in prediction.programs))
    if max(program.depth for program in split.programs) >= whole:
        return
    most = {device.name: device.memory_bytes or device.type.memory_bytes or inf for device in inputs.devices}
    fits = all(held.total <= most[name] for name, held in split.device_memory.items())
    if not fits or tick(split.pipeline).seconds > prediction.timing.tick_seconds * (1 + SAME_SPEED):
        return
    held, now = (max(one.total for one in each.device_memory.values()) for each in (split, prediction))
    keys = [] if network.schedule == "auto" else ['method.schedule = "auto"']
    yield (
        f"the first stage is {late:.3g} updates late, and with split backwards it would be {_latest(split.programs):.3g}, at "
        f"{_speed(prediction, split)}, with {size_text(held)} instead of {size_text(now)} on the fullest device: "
        f"set {' and '.join([*keys, 'method.split_backward = true'])}"
    )
