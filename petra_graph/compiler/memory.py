"""The memory model: the bytes of every stage or device at its largest moment.

The program is executed with tensors that are only sizes, in the containers of `executor.stage` and `executor.runners`; `_Stage` is to be read
beside those. A tensor counts on its device as long as Python holds it, so where the executor drops a reference, so does the model. What an
operation needs beside its arguments and results comes from running the executor's own segments once (`measure`).

A device has one stage at work at a time. What another device sends is copied, and the sent tensor stays on the sender's device until
then; between stages of one device it is one tensor in a queue. How many messages wait depends on the order in which stages take turns.

Not counted: what a kernel allocates and frees inside itself, evaluations in larger batches, slots of channels beyond their messages, the
flat copies in which replicas sum gradients, and samples that are read ahead.
"""

import sys
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Literal

from attrs import evolve, field, fields_dict, frozen

from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import ITEM_BYTES, ChannelKey, Direction, Edge, encoded_dtype
from petra_graph.program.device_types import CUBLAS_BYTES
from petra_graph.program.node_costs import CostTable, Operation
from petra_graph.program.schedule import Action, Policy, Verb, WeightVersions, program_order
from petra_graph.program.simulation import static_order
from petra_graph.program.stage_program import Segment, StageProgram
from petra_graph.spec.model import PrecisionSpec


@frozen(kw_only=True)
class StageBytes:
    """The memory of a stage, or of a device with all its stages, at its peak, by what tensors are for; each counts once."""

    parameters: int = 0
    """With running statistics."""
    gradients: int = 0
    optimizer: int = 0
    input_buffer: int = 0
    parameter_buffer: int = 0
    """Copies of older parameters, or those for a delay: predicted or estimated ones."""
    graphs: int = 0
    working: int = 0
    """Tensors of the operation that runs, targets that wait, gradients that wait in the head, and what the device's libraries keep."""
    channels: int = 0
    total: int = field(init=False)

    @total.default
    def _total(self) -> int:
        return sum(getattr(self, part) for part in PARTS)


PARTS = tuple(part for part in fields_dict(StageBytes) if part != "total")


def summed(held: Iterable[StageBytes]) -> StageBytes:
    """Add the bytes of devices part by part."""
    listed = list(held)
    return StageBytes(**{part: sum(getattr(one, part) for one in listed) for part in PARTS})


@frozen(kw_only=True)
class EncodedShare:
    """The share of a tensor's bytes that remains where it waits or travels in a smaller type or on another device."""

    buffer: float = 1.0
    """Of an input that waits for its backward; samples wait as they are."""
    channel: float = 1.0
    targets: float = 1.0
    """Of targets that wait for the head on the device that reads the samples; 0: they wait elsewhere."""
    libraries: int = 0
    """Bytes that a device's libraries keep from their first operation on."""


def transport_of(precision: PrecisionSpec, kind: str) -> EncodedShare:
    """Return the shares of a precision on devices of a kind, "cpu" or "cuda"."""
    own, gpu = "float64" if precision.compute == "float64" else "float32", kind == "cuda"
    stored = precision.buffer_dtype, precision.channel_dtype
    buffer, channel = (ITEM_BYTES[encoded_dtype(one, own)] / ITEM_BYTES[own] for one in stored)
    libraries = CUBLAS_BYTES if gpu else 0
    return EncodedShare(buffer=buffer, channel=channel, targets=0.0 if gpu else 1.0, libraries=libraries)


class _Device:
    """The bytes alive on one device, and the most at any moment; once the peak is known from an execution before, its parts."""

    def __init__(self, libraries: int, known_peak: int | None) -> None:
        self.live, self.peak, self.known_peak = libraries, 0, known_peak
        self.parts: dict[str, int] = {}
        self.stages: list[_Stage] = []

    def moment(self, working: int = 0) -> None:
        """Look at a moment at which the running operation holds `working` bytes of its own."""
        alive = self.live + working
        self.peak = max(self.peak, alive)
        if alive == self.known_peak and not self.parts:
            counted, held = set[int](), [stage.held() for stage in self.stages]
            for part in held[0]:
                tensors = (one for own in held for one in own[part] if one.device is self)
                new = {id(one): one.size for one in tensors if id(one) not in counted}
                counted.update(new)
                self.parts[part] = sum(new.values())
            self.parts["working"] = alive - sum(self.parts.values())


class _Tensor:
    """A tensor that is only a size; it is alive as long as Python holds it."""

    __slots__ = ("device", "size")

    def __init__(self, size: int, device: _Device) -> None:
        self.size, self.device = size, device
        device.live += size

    def __del__(self) -> None:
        self.device.live -= self.size


_Tensors = list[_Tensor]
_Message = list[_Tensors]
"""Of a forward the streams; of a backward the gradients, and the activation for a producer that reconstructs."""
_Queues = Mapping[ChannelKey, deque[_Message]]
_Graph = list[tuple[str, _Tensors, _Tensors, _Tensor]]
"""A kept graph: for each node its name, its inputs, its outputs, and what is saved between them."""
_DIFFERENTIATE = frozenset[Operation]({"reverse", "recompute", "replay", "forward_backward"})


class _Stage:
    """A stage between two drains, which begins with parameters alone."""

    def __init__(
        self, program: StageProgram, costs: CostTable, share: EncodedShare, device: _Device, queues: _Queues
    ) -> None:
        self.program, self.device, self._share, self._queues = program, device, share, queues
        device.stages.append(self)
        self._nodes = {name: costs.nodes[name] for name in program.nodes}
        self._sizes = {
            edge: costs.sample_bytes if edge.producer == INPUT else costs.nodes[edge.producer].output_bytes
            for edge in (*program.receives, *program.sends)
        }
        nodes = self._nodes.values()
        self._parameters = _Tensor(sum(node.parameter_bytes + node.statistics_bytes for node in nodes), device)
        self._gradients: dict[str, _Tensor] = {}
        self._state_bytes = sum(node.optimizer_bytes for node in nodes)
        self._state = None if self._state_bytes else _Tensor(0, device)
        """The optimizer's, from its first step on; without any, each step is like the first."""
        self._first_step = max(node.work["first_update"].working_bytes - node.optimizer_bytes for node in nodes)
        self._step = max(node.work["update"].working_bytes for node in nodes)
        # What segments keep, by their first node.
        self._inputs: dict[str, deque[_Tensors]] = defaultdict(deque)
        self._graphs: dict[str, deque[_Graph]] = defaultdict(deque)
        self._of_head: deque[tuple[_Tensors, _Tensors]] = deque()
        stored = (one for one in program.segments if one.backward == "stored" and one.kind != "head")
        copied = sum(self._nodes[name].parameter_bytes for segment in stored for name in segment.nodes)
        self._versions = WeightVersions(lambda: _Tensor(copied, device))
        self._facts = program.facts(stages=program.index, replicas=1, micro_batches=sys.maxsize)
        self._delayed: dict[Operation, tuple[int, _Tensor]] = {}
        """The parameters that a late forward or backward has in place of the stage's own, and for which delay in updates."""
        self._corrects = () if copied else tuple(nodes)

    def held(self) -> dict[str, Iterable[_Tensor]]:
        """Return the tensors that are held between operations, by what they are for; a tensor counts for the first of them."""
        graphs = (node for waiting in self._graphs.values() for graph in waiting for node in graph)
        sent = (one for queue in self._queues.values() for message in queue for tensors in message for one in tensors)
        return {
            "parameters": [self._parameters],
            "gradients": self._gradients.values(),
            "optimizer": [] if self._state is None else [self._state],
            "parameter_buffer": [*self._versions.copies.values(), *(tensor for _, tensor in self._delayed.values())],
            "input_buffer": (tensor for waiting in self._inputs.values() for kept in waiting for tensor in kept),
            "graphs": (tensor for _, inputs, outputs, between in graphs for tensor in (*inputs, *outputs, between)),
            "channels": sent,
        }

    # --- operations ---

    def forward(self, micro_batch: int) -> None:
        received: dict[Edge, _Tensors] = {}
        for edge in self.program.receives:
            if edge.producer == INPUT:
                received[edge] = self._new(self._sizes[edge])
                self.device.moment()
            else:
                (received[edge],) = self._received(edge, "forward")
        self._hold_for_delay("predict", micro_batch)
        self._versions.begin(micro_batch)
        for segment in self.program.segments:
            inputs = [tensor for entry in segment.inputs for tensor in received.pop(entry.edge)]
            outputs = self._evaluate(segment, micro_batch, inputs)
            for edge in segment.outputs:
                if edge.consumer in self._nodes:
                    received[edge] = outputs
                else:
                    self._send(edge, "forward", outputs)
            del inputs, outputs

    def backward(self, micro_batch: int) -> None:
        # An entry of `received` has the gradients, and the activation where the producer reconstructs.
        received = {edge: self._received(edge, "backward") for edge in self.program.sends}
        self._hold_for_delay("estimate", micro_batch)
        for segment in reversed(self.program.segments):
            # The variables of the segment before live until these replace them, as in the executor.
            gradients, outputs = self._joined([received.pop(edge) for edge in segment.outputs])
            inputs, through = self._differentiate(segment, micro_batch, outputs, gradients)
            first = 0
            for entry in segment.inputs:
                own = slice(first, first := first + entry.streams)
                message = [through[own], inputs[own]] if entry.returns_activation else [through[own]]
                if entry.edge.producer in self._nodes:
                    received[entry.edge] = message
                elif entry.edge.producer != INPUT:
                    self._send(entry.edge, "backward", *message)
        self._versions.end(micro_batch)

    def update(self) -> None:
        self._versions.before_step()
        self._delayed.clear()
        first = self._state is None
        if first:
            self._state = _Tensor(self._state_bytes, self.device)
        self.device.moment(self._first_step if first else self._step)
        self._gradients.clear()

    # --- messages ---

    def _send(self, edge: Edge, direction: Direction, *message: _Tensors) -> None:
        queued: _Message = []
        self._queues[ChannelKey(edge, direction)].append(queued)
        for tensors in message:
            if self._share.channel == 1:
                queued.append(tensors)
            else:
                queued.append(self._new(ceil(self._share.channel * tensor.size) for tensor in tensors))
                self.device.moment()

    def _received(self, edge: Edge, direction: Direction) -> _Message:
        """Take a message; it stays in its queue until it has been copied."""
        queue, sizes, encoded = self._queues[ChannelKey(edge, direction)], self._sizes[edge], self._share.channel != 1
        found: _Message = []
        while waiting := queue[0]:
            here = waiting[0][0].device is self.device
            if here and not encoded:
                found.append(waiting[0])
            else:
                found.append(self._new(sizes))
                self.device.moment(ceil(self._share.channel * sum(sizes)) if encoded and not here else 0)
            del waiting[0]
        queue.popleft()
        return found

    def _joined(self, messages: list[_Message]) -> tuple[_Tensors, _Tensors]:
        """Return the sum of the gradients of some consumers, and the activation that one of them returns."""
        outputs = next((message[1] for message in messages if len(message) > 1), [])
        if len(messages) < 2:  # noqa: PLR2004  one needs no addition
            return (messages[0][0] if messages else []), outputs
        sizes = [tensor.size for tensor in messages[0][0]]
        # A sum of three needs the sum of two at the same time.
        self.device.moment(sum(sizes) + (max(sizes, default=0) if len(messages) > 2 else 0))  # noqa: PLR2004
        return self._new(sizes), outputs

    # --- segments ---

    def _evaluate(self, segment: Segment, micro_batch: int, inputs: _Tensors) -> _Tensors:
        name = segment.nodes[0]
        if segment.kind == "head":
            self._of_head.append((inputs, self._do(name, "forward_backward", inputs)))
            return []
        if segment.keeps == "graph":
            if segment.backward == "stored":
                self._versions.copy_for(micro_batch)
            return self._record(segment.nodes, inputs)
        if segment.keeps == "input":
            share = self._buffer_share(segment)
            kept = inputs if share == 1 else self._new(ceil(share * tensor.size) for tensor in inputs)
            self._inputs[name].append(kept)
        streams = inputs
        for name in segment.nodes:
            streams = self._do(name, "forward", streams)
        return streams

    def _differentiate(
        self, segment: Segment, micro_batch: int, outputs: _Tensors, gradients: _Tensors
    ) -> tuple[_Tensors, _Tensors]:
        name = segment.nodes[0]
        if segment.kind == "head":
            return self._of_head.popleft()
        if segment.keeps == "graph":
            inputs = self._graphs[name][0][0][1]
            return inputs, self._replay(name, gradients)
        if segment.keeps == "nothing" and (segment.backward != "stored" or self._versions.older(micro_batch) is None):
            both = self._do(name, "reverse", [*outputs, *gradients])
            return both[: len(both) // 2], both[len(both) // 2 :]
        if segment.keeps == "nothing":
            inputs = self._do(name, "invert", outputs)
        elif self._buffer_share(segment) == 1:
            inputs = self._inputs[name][0]  # It counts as waiting until it has been used.
        else:
            inputs = self._new(self._nodes[name].input_bytes)
            self.device.moment()
            self._inputs[name].popleft()
        if len(segment.nodes) > 1:
            self._record(segment.nodes, inputs)
            through = self._replay(name, gradients)
        else:
            through = self._do(name, "recompute", [*gradients, *inputs])
        if segment.keeps == "input" and self._buffer_share(segment) == 1:
            self._inputs[name].popleft()
        return inputs, through

    def _buffer_share(self, segment: Segment) -> float:
        samples = any(entry.edge.producer == INPUT for entry in segment.inputs)
        return 1.0 if samples else self._share.buffer

    def _record(self, nodes: Iterable[str], streams: _Tensors) -> _Tensors:
        graph: _Graph = []
        for name in nodes:
            inputs, streams = streams, self._do(name, "record", streams)
            graph.append((name, inputs, streams, _Tensor(self._nodes[name].work["record"].kept_bytes, self.device)))
            if len(graph) == 1:
                self._graphs[name].append(graph)
        return streams

    def _replay(self, first: str, through: _Tensors) -> _Tensors:
        graph = self._graphs[first][0]
        while graph:
            name, inputs = graph[-1][:2]
            through = self._do(name, "replay", [*through, *inputs])
            graph.pop()
        self._graphs[first].popleft()
        return through

    def _do(self, name: str, operation: Operation, arguments: _Tensors) -> _Tensors:
        """Return the results of an operation of a node, some of which may lie in the memory of an argument or of one another."""
        node = self._nodes[name]
        work, differentiates = node.work[operation], operation in _DIFFERENTIATE
        adds = differentiates and name in self._gradients
        self.device.moment(work.accumulating_bytes if adds else work.working_bytes)
        if differentiates and not adds:
            self._gradients[name] = _Tensor(node.gradient_bytes, self.device)
        sizes = node.output_bytes if operation in {"forward", "record"} else node.input_bytes
        known = list(arguments)
        for share, size in zip(work.shares, sizes * 2 if operation == "reverse" else sizes, strict=True):
            known.append(_Tensor(size, self.device) if share is None else known[share])
        return known[len(arguments) :]

    def _hold_for_delay(self, operation: Literal["predict", "estimate"], micro_batch: int) -> None:
        """Hold what the optimizer gives for a pass of a micro-batch, once it has taken a step, in place of that for another delay."""
        works = [node.work[operation] for node in self._corrects if operation in node.work]
        if not works or self._state is None:
            return
        delay = self._facts.staleness(micro_batch)
        if operation in self._delayed and self._delayed[operation][0] != delay:
            del self._delayed[operation]
        if delay and operation not in self._delayed:
            self._delayed[operation] = delay, _Tensor(sum(work.kept_bytes for work in works), self.device)
            self.device.moment(max(work.working_bytes - work.kept_bytes for work in works))

    def _new(self, sizes: Iterable[int]) -> _Tensors:
        return [_Tensor(size, self.device) for size in sizes]


@frozen(kw_only=True)
class MemoryModel:
    """What stages and devices hold under a table of costs."""

    costs: CostTable
    transport: EncodedShare = EncodedShare()
    policy: Policy = "arrival"
    """By which the stages of a device take turns, on which nothing else depends."""
    micro_batches: int | None = None
    """Between two drains; None: enough for every device to reach its largest moment."""

    def apart(self, programs: Sequence[StageProgram]) -> tuple[StageBytes, ...]:
        """Return the memory of every stage, in the programs' order, as if each had a device of its own, without its libraries'."""
        model = evolve(self, transport=evolve(self.transport, libraries=0))
        return tuple(model.on_devices([evolve(program, device=str(program.index)) for program in programs]).values())

    def on_devices(
        self, programs: Sequence[StageProgram], peaks: Mapping[str, int] | None = None
    ) -> Mapping[str, StageBytes]:
        """Return the memory of every device that hosts a stage, at the device's largest moment, of which the bytes may be known."""
        devices = self._devices(programs, peaks or self.peaks(programs))
        return {name: StageBytes(**device.parts) for name, device in devices.items()}

    def peaks(self, programs: Sequence[StageProgram]) -> Mapping[str, int]:
        return {name: device.peak for name, device in self._devices(programs, {}).items()}

    def _devices(self, programs: Sequence[StageProgram], known: Mapping[str, int]) -> Mapping[str, _Device]:
        # A process with one stage waits for messages alone: what it holds does not depend on the policy.
        hosted = Counter(program.device for program in programs)
        policy: Mapping[str, Policy] = {
            name: self.policy if stages > 1 else "arrival" for name, stages in hosted.items()
        }
        found = {one: self._execute(programs, one, known) for one in set(policy.values())}
        return {name: found[one][name] for name, one in policy.items()}

    def _execute(
        self, programs: Sequence[StageProgram], policy: Policy, known: Mapping[str, int]
    ) -> Mapping[str, _Device]:
        """Execute the operations between two drains, and return the devices; with known peaks, up to the last of them."""
        # Where older parameters are kept, twice as many: each micro-batch in flight may use a version of its own.
        stored = any(segment.backward == "stored" for program in programs for segment in program.segments)
        enough = (2 if stored else 1) * max(program.depth for program in programs) + 3 * programs[0].accumulation
        devices = {program.device: _Device(self.transport.libraries, known.get(program.device)) for program in programs}
        queues: _Queues = {channel.key: deque() for program in programs for channel in program.channels}
        stages = {
            program.index: _Stage(program, self.costs, self.transport, devices[program.device], queues)
            for program in programs
        }
        source = next(one for one in stages.values() if any(edge.producer == INPUT for edge in one.program.receives))
        head, targets = stages[programs[-1].index], deque[_Tensor]()
        for index, (verb, micro_batch) in _begun(programs, queues, policy, range(self.micro_batches or enough)):
            stage = stages[index]
            if verb == "forward":
                # Where both are on one device, targets are there on their way from the samples to the head.
                if stage is source is not head and source.device is head.device:
                    targets.append(_Tensor(ceil(self.transport.targets * self.costs.target_bytes), stage.device))
                stage.forward(micro_batch)
                if stage is head and targets:
                    targets.popleft()
            elif verb == "backward":
                stage.backward(micro_batch)
            else:
                stage.update()
            if known and all(device.parts for device in devices.values()):
                break
        return devices


def _begun(
    programs: Sequence[StageProgram], queues: _Queues, policy: Policy, micro_batches: range
) -> Iterator[tuple[int, Action]]:
    """Yield the operations in their order, each with its stage's index: under `arrival` in rounds from the head to the first stage, as a single process does."""
    if policy == "static":
        yield from static_order(programs, micro_batches)
        return
    reads: dict[tuple[int, Verb], list[deque[_Message]]] = defaultdict(list)
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
