"""The memory model: the bytes of every stage or device at its largest moment.

The program is executed with tensors that are only sizes (`stage_memory`). A tensor counts on its device as long as Python holds it, and it is held
where the executor holds it: in the queues of channels, in the inputs, graphs and parameters that wait for a backward, and in the
variables of the operation that runs.

A device has one stage at work at a time. What another device sends is copied, and the sent tensor stays on the sender's device until
then; between stages of one device it is one tensor in a queue. How many messages wait depends on the order in which stages take turns:
under `arrival` in rounds from the head to the first stage, as a single process does; `static` is `program.schedule.static_order`.

Decision: no formula. Depth times bytes is the size of the buffers, but the largest moment also has messages on channels, the results of a
backward, and tensors that are two things at once (a coupling sends the stream that it stores); every formula that was exact for
one method was off by a fifth for another.

Not counted: what a kernel allocates and frees inside itself, evaluations in larger batches, slots of channels beyond their messages, the
flat copies in which replicas sum gradients, and samples that are read ahead.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any, Literal, NamedTuple, get_args

import attrs
from attrs import field, frozen

from petra_graph.compiler.stage_memory import Device, EncodedShare, Message, Queues, StageMemory, Tensor
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.node_costs import CostTable
from petra_graph.program.schedule import Action, Policy, Verb, program_order, static_order
from petra_graph.program.stage_program import StageProgram

Part = Literal[
    "parameters", "gradients", "optimizer", "input_buffer", "parameter_buffer", "graphs", "working", "channels"
]
PARTS: tuple[Part, ...] = get_args(Part)


@frozen(kw_only=True)
class StageBytes:
    """The memory of a stage, or of a device with all its stages, at its peak; the parts add up to the total.

    A tensor that is there for several reasons counts once, for the first of: parameter buffer, input buffer, graphs, channels.
    """

    parameters: int = 0
    """With running statistics."""
    gradients: int = 0
    """From the end of a window's first backward to its update; while that backward makes them, they are `working`."""
    optimizer: int = 0
    input_buffer: int = 0
    """Inputs that wait for their backward; those of the first stage in the data set's own type."""
    parameter_buffer: int = 0
    """Copies of older parameters, or those for a delay: predicted or estimated ones."""
    graphs: int = 0
    """Stashed graphs, with their inputs and outputs."""
    working: int = 0
    """Tensors of the operation that runs: received, made, and not yet sent; samples; targets on their way to a head on
    the same device; in the head, gradients that wait for the backward; what the device's libraries keep."""
    channels: int = 0
    """Messages sent and not yet received."""
    total: int = field(init=False)

    @total.default
    def _total(self) -> int:
        return sum(getattr(self, part) for part in PARTS)


def summed(held: Iterable[StageBytes]) -> StageBytes:
    """Add the bytes of devices, or of stages that each have one, part by part."""
    listed = [attrs.asdict(one) for one in held]
    return StageBytes(**{part: sum(one[part] for one in listed) for part in PARTS})


class Peak(NamedTuple):
    """The largest moment of a device."""

    bytes: int
    moment: int
    """Its number."""


def stage_memory(
    programs: Sequence[StageProgram],
    costs: CostTable,
    *,
    micro_batches: int | None = None,
    transport: EncodedShare | None = None,
) -> tuple[StageBytes, ...]:
    """Return every stage's memory at its largest moment, in the programs' order, as if each had a device of its own, without its libraries'.

    Args:
        micro_batches: between two drains; None: enough for every stage to reach its largest moment.
        transport: the share of bytes in which tensors wait and travel; None: all.
    """
    apart = [attrs.evolve(program, device=str(program.index)) for program in programs]
    share = attrs.evolve(transport or EncodedShare(), libraries=0)
    return tuple(device_memory(apart, costs, micro_batches=micro_batches, transport=share).values())


def device_memory(
    programs: Sequence[StageProgram],
    costs: CostTable,
    *,
    policy: Policy = "arrival",
    micro_batches: int | None = None,
    transport: EncodedShare | None = None,
    peaks: Mapping[str, Peak] | None = None,
) -> Mapping[str, StageBytes]:
    """Return the memory of every device that hosts a stage, at the device's largest moment.

    Args:
        peaks: those of `device_peaks`, if they are known; other arguments are its own.
    """
    more: Any = {"policy": policy, "micro_batches": micro_batches, "transport": transport}
    peaks = peaks or device_peaks(programs, costs, **more)
    devices = _execute(programs, costs, {name: peak.moment for name, peak in peaks.items()}, **more)
    return {name: StageBytes(**device.parts) for name, device in devices.items()}


def device_peaks(programs: Sequence[StageProgram], costs: CostTable, **more: Any) -> Mapping[str, Peak]:
    """Return the most bytes that each device holds at once, and when.

    Args:
        more: the policy by which the stages of a device take turns, on which nothing else depends; micro-batches and transport as of `stage_memory`.
    """
    devices = _execute(programs, costs, {}, **more)
    return {name: Peak(device.peak, device.peak_at) for name, device in devices.items()}


def _execute(
    programs: Sequence[StageProgram],
    costs: CostTable,
    look_at: Mapping[str, int],
    *,
    policy: Policy = "arrival",
    micro_batches: int | None = None,
    transport: EncodedShare | None = None,
) -> Mapping[str, Device]:
    """Execute the operations between two drains, and return the devices; where a device has one stage, what it holds does not depend on the policy.

    Args:
        look_at: by device, the moment of which it is to say what its bytes are for; behind the last of them nothing is executed.
    """
    share = transport or EncodedShare()
    stored = any(segment.backward == "stored" for program in programs for segment in program.segments)
    # Where older parameters are kept, twice as many: each micro-batch in flight may use a version of its own.
    enough = (2 if stored else 1) * max(program.depth for program in programs) + 3 * programs[0].accumulation
    hosted = Counter(program.device for program in programs)
    devices = {name: Device(share.libraries, look_at.get(name)) for name in hosted}
    alone = {name for name, stages in hosted.items() if policy == "static" and stages == 1}
    turns: tuple[tuple[Policy, set[str]], ...] = (("arrival", alone), (policy, hosted.keys() - alone))
    for one, counted in turns:
        if counted:
            own = [devices[program.device] if program.device in counted else Device() for program in programs]
            _run(programs, costs, share, own, (one, range(micro_batches or enough)))
    return devices


def _run(
    programs: Sequence[StageProgram],
    costs: CostTable,
    share: EncodedShare,
    devices: Sequence[Device],
    order: tuple[Policy, range],
) -> None:
    """Execute the operations of stages, each on its device, as long as a device waits for its moment; `order` is the policy and the micro-batches."""
    channels = {channel.key: channel for program in programs for channel in program.channels}
    queues: Queues = {key: deque() for key in channels}
    stages = {
        program.index: StageMemory(program, costs, share, device, queues)
        for program, device in zip(programs, devices, strict=True)
    }
    source = next(one for one in stages.values() if any(edge.producer == INPUT for edge in one.program.receives))
    head = stages[programs[-1].index]
    target_bytes = ceil(share.targets * costs.target_bytes)
    targets: deque[Tensor] = deque()
    """On their way from the samples to the head, where both stages are on one device."""
    looking = [device for device in devices if device.look_at is not None]
    for index, (verb, micro_batch) in _begun(programs, queues, *order):
        stage = stages[index]
        match verb:
            case "forward":
                if stage is source is not head and source.device is head.device:
                    targets.append(Tensor(target_bytes, stage.device))
                stage.forward(micro_batch)
                if stage is head and targets:
                    targets.popleft()
            case "backward":
                stage.backward(micro_batch)
            case "update":
                stage.update()
        if looking and all(device.moments >= (device.look_at or 0) for device in looking):
            break


def _begun(
    programs: Sequence[StageProgram], queues: Queues, policy: Policy, micro_batches: range
) -> Iterator[tuple[int, Action]]:
    """Yield the operations in their order, each with its stage's index; what an operation sends is queued before the next one is asked for."""
    if policy == "static":
        yield from static_order(programs, micro_batches)
        return
    reads: dict[tuple[int, Verb], list[deque[Message]]] = defaultdict(list)
    """The queues that an operation needs a message from, by the stage's index."""
    for channel in {channel.key: channel for program in programs for channel in program.channels}.values():
        reads[channel.receiver, channel.key.direction].append(queues[channel.key])
    orders = {program.index: program_order(program, micro_batches) for program in reversed(programs)}
    following = {index: next(actions) for index, actions in orders.items()}
    while following:
        for index, action in list(following.items()):
            if all(reads[index, action.verb]):
                yield index, action
                if (after := next(orders[index], None)) is None:
                    del following[index]
                else:
                    following[index] = after
