"""The memory model: the bytes of every stage or device at its largest moment.

The program is executed with tensors that are only sizes (`stage_memory`). A tensor counts on its device as long as Python holds it, and it is held
where the executor holds it: in the queues of channels, in the inputs, graphs and parameters that wait for a backward, and in the
variables of the operation that runs.

A device has one stage at work at a time. What another device sends is copied, and the sent tensor stays on the sender's device until
then; between stages of one device it is one tensor in a queue. How many messages wait depends on the order in which stages take turns:
under `arrival` in rounds from the head to the first stage, as a single process does; `static` is `program.simulation.static_order`.

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
from typing import Literal, get_args

import attrs
from attrs import field, frozen

from petra_graph.compiler.stage_memory import Device, EncodedShare, Message, Queues, StageMemory, Tensor
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.node_costs import CostTable
from petra_graph.program.schedule import Action, Policy, Verb, program_order
from petra_graph.program.simulation import static_order
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


@frozen(kw_only=True)
class MemoryModel:
    """What stages and devices hold under a table of costs."""

    costs: CostTable
    transport: EncodedShare = EncodedShare()
    """The share of bytes in which tensors wait and travel."""
    policy: Policy = "arrival"
    """By which the stages of a device take turns, on which nothing else depends."""
    micro_batches: int | None = None
    """Between two drains; None: enough for every device to reach its largest moment."""

    def apart(self, programs: Sequence[StageProgram]) -> tuple[StageBytes, ...]:
        """Return the memory of every stage, in the programs' order, as if each had a device of its own, without its libraries'."""
        each = [attrs.evolve(program, device=str(program.index)) for program in programs]
        model = attrs.evolve(self, policy="arrival", transport=attrs.evolve(self.transport, libraries=0))
        return tuple(model.on_devices(each).values())

    def on_devices(
        self, programs: Sequence[StageProgram], peaks: Mapping[str, int] | None = None
    ) -> Mapping[str, StageBytes]:
        """Return the memory of every device that hosts a stage, at the device's largest moment; `peaks` are its bytes, if they are known."""
        devices = self._execute(programs, peaks or self.peaks(programs))
        assert all(device.parts for device in devices.values()), "a peak of another pipeline"
        return {name: StageBytes(**device.parts) for name, device in devices.items()}

    def peaks(self, programs: Sequence[StageProgram]) -> Mapping[str, int]:
        """Return the most bytes that every device that hosts a stage holds at once."""
        return {name: device.peak for name, device in self._execute(programs, {}).items()}

    def _execute(self, programs: Sequence[StageProgram], known: Mapping[str, int]) -> Mapping[str, Device]:
        """Execute the operations between two drains, and return the devices; with known peaks, up to the last of them."""
        # Where older parameters are kept, twice as many: each micro-batch in flight may use a version of its own.
        stored = any(segment.backward == "stored" for program in programs for segment in program.segments)
        enough = (2 if stored else 1) * max(program.depth for program in programs) + 3 * programs[0].accumulation
        hosted = Counter(program.device for program in programs)
        devices = {name: Device(self.transport.libraries, known.get(name)) for name in hosted}
        # A process with one stage waits for messages alone: what it holds does not depend on the policy, and is that of `arrival`.
        alone = {name for name, stages in hosted.items() if self.policy == "static" and stages == 1}
        turns: tuple[tuple[Policy, set[str]], ...] = (("arrival", alone), (self.policy, hosted.keys() - alone))
        for policy, counted in turns:
            if counted:
                own = [devices[program.device] if program.device in counted else Device() for program in programs]
                self._run(programs, own, policy, range(self.micro_batches or enough))
        return devices

    def _run(
        self, programs: Sequence[StageProgram], devices: Sequence[Device], policy: Policy, micro_batches: range
    ) -> None:
        """Execute the operations of stages, each on its device, as long as a device waits for its known peak."""
        queues: Queues = {channel.key: deque() for program in programs for channel in program.channels}
        stages = {
            program.index: StageMemory(program, self.costs, self.transport, device, queues)
            for program, device in zip(programs, devices, strict=True)
        }
        source = next(one for one in stages.values() if any(edge.producer == INPUT for edge in one.program.receives))
        head = stages[programs[-1].index]
        target_bytes = ceil(self.transport.targets * self.costs.target_bytes)
        targets: deque[Tensor] = deque()
        """On their way from the samples to the head, where both stages are on one device."""
        looking = [device for device in devices if device.known_peak is not None]
        for index, (verb, micro_batch) in _begun(programs, queues, policy, micro_batches):
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
            if looking and all(device.parts for device in looking):
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
