"""The cost of every node: all that the planner knows of a network.

Operations are those of the executor's segment runners:

    forward             evaluate without a graph
    reverse             reconstruct the input and differentiate there         reversible nodes that keep nothing
    recompute           evaluate again from a stashed input, differentiate    nodes that keep their input
    record              evaluate with a graph, and stash it                   nodes that keep graphs
    replay              differentiate the stashed graph                       the same
    invert              reconstruct the input alone                           before `recompute`: delayed-reconstructed
    forward_backward    evaluate, take the loss and differentiate both        the head
    update              the optimizer's step; a late one, where it knows the delay
    first_update        its first step, which makes its state, and which is not late
    predict             predict the parameters for a forward, and keep them             where the optimizer does it
    estimate            estimate those of the forward for a backward, and keep them     the same
    copy                copy the parameters before an update, where a backward uses older ones    (in a profile alone)

A table holds for one micro-batch size, one precision and one optimizer. A profile has the seconds of these operations, timed on a real device.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from attrs import evolve, field, frozen

from petra_graph.program.device_types import Link
from petra_graph.program.schedule import Verb
from petra_graph.spec.model import Kind

# fmt: off
Operation = Literal[
    "forward", "reverse", "recompute", "record", "replay", "invert", "forward_backward", "update", "first_update", "predict", "estimate", "copy",
]
# fmt: on
_OF_BODY: Mapping[Operation, tuple[str, Verb]] = {
    "forward": ("petra", "forward"),
    "record": ("backprop", "forward"),
    "replay": ("backprop", "backward"),
    "recompute": ("dsp", "backward"),
    "copy": ("delayed-reconstructed", "update"),
    "update": ("petra", "update"),
}
PROFILED: Mapping[Kind, Mapping[Operation, tuple[str, Verb]]] = {
    "reversible": {**_OF_BODY, "reverse": ("petra", "backward"), "invert": ("delayed-reconstructed", "backward")},
    "buffered": _OF_BODY,
    "head": {"forward_backward": ("petra", "forward"), "update": ("petra", "update")},
}
"""The operations that a profile times, by kind of node: all that any method uses; each with the method in whose training it is timed, and when."""


@frozen(kw_only=True)
class Work:
    """The cost of one operation of one node on one micro-batch."""

    flops: int = 0
    """Of convolutions, matrix products and attention; a multiply-add counts two."""
    traffic_bytes: int = 0
    """Read and written by kernels, without caches: inputs and outputs of every operation that does not only make a view."""
    kernels: int = 0
    working_bytes: int = 0
    """Most bytes alive at once, beyond those alive before: with results and new parameter gradients, without arguments."""
    accumulating_bytes: int = 0
    """The same where parameter gradients exist before, and the operation adds to them."""
    kept_bytes: int = 0
    """Bytes alive afterwards beyond arguments and results: those of a stashed graph, or of parameters for a delay."""
    shares: tuple[int | None, ...] = ()
    """For each returned stream, the index of the argument or returned stream in whose memory it lies; None: memory of its own.

    Arguments are those that it has of: output streams, their gradients, input streams; streams are returned before gradients.
    """


@frozen(kw_only=True)
class SharedCost:
    """What a parameter costs that other nodes have too; the node that has it counts all of it."""

    values: int
    parameter_bytes: int
    gradient_bytes: int


@frozen(kw_only=True)
class NodeCost:
    """The costs of one node."""

    kind: Kind
    parameters: int
    parameter_tensors: int = 0
    parameter_bytes: int
    gradient_bytes: int
    """Of the parameters that have a gradient, once a backward has made it."""
    statistics: int
    """Number of floating-point values beside the parameters, such as running statistics."""
    statistics_bytes: int
    optimizer_bytes: int
    input_values: tuple[int, ...]
    """Of each input stream, as the bytes."""
    input_bytes: tuple[int, ...]
    output_bytes: tuple[int, ...]
    work: Mapping[Operation, Work]
    shared: Mapping[str, SharedCost] = field(factory=dict)
    """Parameters that other nodes have too, by the one name that a parameter has in all of them."""


@frozen(kw_only=True)
class CostTable:
    """The costs of all nodes, for one micro-batch size."""

    micro_batch: int
    sample_bytes: tuple[int, ...]
    """A micro-batch of samples as they enter the first node: in the data set's own type, each input by itself."""
    target_bytes: int
    nodes: Mapping[str, NodeCost]

    def counted_once(self, shared: Iterable[tuple[str, Sequence[str]]]) -> "CostTable":
        """Return the table in which one node counts what several of a stage share, by the parameter's name: the last that trains it, whose backward is the first."""
        nodes = dict(self.nodes)
        for label, names in shared:
            owner = max(names, key=lambda name: (nodes[name].shared[label].gradient_bytes > 0, names.index(name)))
            for name in (name for name in names if name != owner):
                node = nodes[name]
                one, first = node.shared[label], node.work["first_update"]
                # Its share of the optimizer's state, which its first step makes no more.
                state = node.optimizer_bytes * one.gradient_bytes // max(1, node.gradient_bytes)
                nodes[name] = evolve(
                    node,
                    parameters=node.parameters - one.values,
                    parameter_tensors=node.parameter_tensors - 1,
                    parameter_bytes=node.parameter_bytes - one.parameter_bytes,
                    gradient_bytes=node.gradient_bytes - one.gradient_bytes,
                    optimizer_bytes=node.optimizer_bytes - state,
                    work={**node.work, "first_update": evolve(first, working_bytes=first.working_bytes - state)},
                )
        return evolve(self, nodes=nodes)

    def with_workspaces(self, found: Mapping[str, Mapping[Operation, int]]) -> "CostTable":
        """Return the table in which operations need more than their tensors, in bytes by node and operation."""
        nodes = dict(self.nodes)
        for name, node in self.nodes.items():
            work = dict(node.work)
            for key, more in found.get(name, {}).items():
                if (one := work.get(key)) is not None:
                    first, later = one.working_bytes + more, one.accumulating_bytes + more
                    work[key] = evolve(one, working_bytes=first, accumulating_bytes=later)
            nodes[name] = evolve(node, work=work)
        return evolve(self, nodes=nodes)


@frozen(kw_only=True)
class Profile:
    """One network with one micro-batch size, precision and optimizer, on one type of device."""

    name: str
    device: str
    device_type: str
    kind: Literal["cpu", "cuda"]
    micro_batch: int
    threads: int
    settings: Mapping[str, Any]
    """By table of the specification, as JSON: precision, optimizer, loss and run, as far as seconds depend on them."""
    nodes: Mapping[str, Mapping[Operation, float]]
    """By node and operation: seconds a micro-batch (medians); `update`: seconds a step. Of a GPU, those of its own work."""
    host: Mapping[str, Mapping[Operation, float]] = field(factory=dict)
    """The same of the host that queues a GPU's work; of no node on a CPU, which does both."""
    workspace: Mapping[str, Mapping[Operation, int]] = field(factory=dict)
    """By node and operation: bytes that a GPU's allocator handed out beyond the operation's tensors, at most."""
    sizes: Mapping[str, tuple[int, int]]
    outside: float
    """Seconds a micro-batch outside all stages: loading samples, passing messages."""
    link: Link | None
    """Between two of the devices; on the CPU of one machine, through its memory."""
