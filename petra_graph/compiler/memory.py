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
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Literal, get_args

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
) -> Mapping[str, StageBytes]:
    """Return the memory of every device that hosts a stage, at the device's largest moment; `policy` as in `device_bytes`."""
    share = transport or EncodedShare()
    devices = {program.device: Device(share.libraries) for program in programs}
    _execute(programs, costs, share, devices, policy=policy, micro_batches=micro_batches)
    again = {name: _DeviceSeenAgain(share.libraries, device.peak_at) for name, device in devices.items()}
    _execute(programs, costs, share, again, policy=policy, micro_batches=micro_batches)
    return {name: device.parts for name, device in again.items()}


def device_bytes(
    programs: Sequence[StageProgram],
    costs: CostTable,
    *,
    policy: Policy = "arrival",
    transport: EncodedShare | None = None,
) -> Mapping[str, int]:
    """Return the most bytes that each device holds at once, in half the time of `device_memory`.

    Args:
        policy: the order in which the stages of a device take turns; nothing else depends on it.
        transport: the share of bytes in which tensors wait and travel; None: all.
    """
    share = transport or EncodedShare()
    devices = {program.device: Device(share.libraries) for program in programs}
    _execute(programs, costs, share, devices, policy=policy)
    return {name: device.peak for name, device in devices.items()}


class _DeviceSeenAgain(Device):
    """A device in a second execution, which knows its largest moment, and looks there at what each tensor is for."""

    parts: StageBytes

    def __init__(self, libraries: int, peak_at: int) -> None:
        super().__init__(libraries)
        self.peak_at = peak_at

    def moment(self, working: int = 0) -> None:
        self.moments += 1
        if self.moments != self.peak_at:
            return
        counted = set[int]()

        def size(tensors: Iterable[Tensor]) -> int:
            new = {id(one): one.size for one in tensors if one.device is self and id(one) not in counted}
            counted.update(new)
            return sum(new.values())

        held = [stage.held() for stage in self.stages]
        parts = {part: size(tensor for own in held for tensor in own[part]) for part in held[0]}
        self.parts = StageBytes(**parts, working=self.live + working - sum(parts.values()))


def _execute(
    programs: Sequence[StageProgram],
    costs: CostTable,
    share: EncodedShare,
    devices: Mapping[str, Device],
    *,
    policy: Policy,
    micro_batches: int | None = None,
) -> None:
    """Execute all operations between two drains; where a device has one stage, what it holds does not depend on the policy."""
    stored = any(segment.backward == "stored" for program in programs for segment in program.segments)
    # Where older parameters are kept, twice as many: each micro-batch in flight may use a version of its own.
    enough = (2 if stored else 1) * max(program.depth for program in programs) + 3 * programs[0].accumulation
    every, hosted = range(micro_batches or enough), Counter(program.device for program in programs)
    alone = {name for name, stages in hosted.items() if policy == "static" and stages == 1}
    turns: tuple[tuple[Policy, set[str]], ...] = (("arrival", alone), (policy, hosted.keys() - alone))
    for one, counted in turns:
        if counted:
            own = [devices[program.device] if program.device in counted else Device() for program in programs]
            _Pipeline(programs, costs, share, own).execute(one, every)


class _Pipeline:
    """All stages, and the messages between them."""

    def __init__(
        self, programs: Sequence[StageProgram], costs: CostTable, share: EncodedShare, devices: Sequence[Device]
    ) -> None:
        self._programs = programs
        queues: Queues = {channel.key: deque() for program in programs for channel in program.channels}
        self._reads: dict[tuple[int, Verb], list[deque[Message]]] = defaultdict(list)
        """The queues that an operation needs a message from, by the stage's index."""
        for channel in {channel.key: channel for program in programs for channel in program.channels}.values():
            self._reads[channel.receiver, channel.key.direction].append(queues[channel.key])
        self._stages = {
            program.index: StageMemory(program, costs, share, device, queues)
            for program, device in zip(programs, devices, strict=True)
        }
        self._target_bytes = ceil(share.targets * costs.target_bytes)
        self._targets: deque[Tensor] = deque()
        """On their way to the head, where that is on the device of the samples."""

    def execute(self, policy: Policy, micro_batches: range) -> None:
        if policy == "static":
            for index, action in static_order(self._programs, micro_batches):
                self._perform(self._stages[index], action)
            return
        orders = {program.index: program_order(program, micro_batches) for program in reversed(self._programs)}
        following = {index: next(actions) for index, actions in orders.items()}
        while following:
            for index, action in list(following.items()):
                if all(self._reads[index, action.verb]):
                    self._perform(self._stages[index], action)
                    if (after := next(orders[index], None)) is None:
                        del following[index]
                    else:
                        following[index] = after

    def _perform(self, stage: StageMemory, action: Action) -> None:
        match action.verb:
            case "forward":
                if self._targets_wait(stage):
                    self._targets.append(Tensor(self._target_bytes, stage.device))
                stage.forward(action.micro_batch)
                if stage.program.holds_head and self._targets:
                    self._targets.popleft()
            case "backward":
                stage.backward(action.micro_batch)
            case "update":
                stage.update()

    def _targets_wait(self, stage: StageMemory) -> bool:
        """Whether the targets that a stage's samples come with wait on its device for another stage, the head's."""
        if all(edge.producer != INPUT for edge in stage.program.receives):
            return False
        return any(one is not stage and one.program.holds_head for one in stage.device.stages)
