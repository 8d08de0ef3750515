"""The output streams of every node, measured with little memory, or without any.

Blocks are built and run with a batch of two: on the CPU up to the first tensor that is not small, from then on on torch's meta device, where
shapes and dtypes are real and data is not. The meta device's operations import sympy, which takes a second: a small network needs none of
that. A block that the meta device cannot build or run (it reads values) is built and run on the CPU, however large it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from attrs import field, frozen
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from petra_graph.blocks import Block, Head, Reversible, Shape, Streams, frozen_statistics
from petra_graph.errors import PluginError, Problem, SpecError
from petra_graph.graph.node_graph import INPUT, Node, NodeGraph
from petra_graph.measure.build_block import build_block, listing, needs_values, refusing
from petra_graph.measure.tally import ShapesAlone, tensors
from petra_graph.measure.without_compiler import uncompiled
from petra_graph.plugins.data_set import DataFacts
from petra_graph.plugins.tensor_trees import is_several
from petra_graph.program.message_layout import StreamType

T = TypeVar("T")
_BATCH = 2
_SMALL_BYTES = 2**22
"""Of the largest tensor on the CPU: filling and multiplying such tensors takes no time."""


@frozen(kw_only=True)
class SharedParameter:
    """A parameter of one node that others have too."""

    label: str
    """Its one name in all of them, as in `Block.shared_parameters`."""
    values: int
    trained: bool
    """Whether this node trains it."""


@frozen(kw_only=True)
class NodeShapes:
    """Shapes of one node's streams, without the batch dimension, and its parameters."""

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    dtypes: tuple[torch.dtype, ...] = field(default=(), eq=False)
    """Element types of the outputs, as a network in float32 returns them."""
    parameters: int
    """Number of their values."""
    trained: Mapping[str, int] = field(factory=dict, eq=False)
    """Number of values of each parameter that is trained, by its name in the block."""
    frozen: tuple[str, ...] = field(default=(), eq=False)
    """Names of those that are not."""
    several: bool = field(default=False, eq=False)
    """Whether it is a head that gives the loss several tensors, or one in a structure."""
    shared: Mapping[str, SharedParameter] = field(factory=dict, eq=False)
    """Its parameters that other nodes have too, by their names in the block."""

    @property
    def streams(self) -> tuple[StreamType, ...]:
        """The outputs' shapes and element types."""
        names = (str(dtype).removeprefix("torch.") for dtype in self.dtypes)
        return tuple(StreamType(*pair) for pair in zip(self.outputs, names, strict=True))


class Memo(list[tuple[Any, T]]):
    """Values by keys that need not be hashable, as options of plugins are."""

    def get(self, key: object, measure: Callable[[], T]) -> T:
        """Return the value of a key, measured the first time."""
        for known, value in self:
            if known == key:
                return value
        self.append((key, measure()))
        return self[-1][1]


@uncompiled()
def measure_shapes(graph: NodeGraph, facts: DataFacts) -> Mapping[str, NodeShapes]:
    """Run all nodes in order.

    Raises:
        SpecError: blocks refuse their input, or their inverses do not return shapes.
        PluginError: as `build_block`.
    """
    samples = (
        torch.empty(_BATCH, *shape, dtype=torch.int64 if dtype == "int64" else torch.float32, device="meta")
        for shape, dtype in facts.inputs.values()
    )
    return dict(each_node(graph, tuple(samples), partial(_measure, _SmallTensors())))


def each_node(
    graph: NodeGraph, samples: Streams, measure: Callable[[Node, Streams], tuple[T, Streams]]
) -> Iterator[tuple[str, T]]:
    """Yield the nodes in order, with what is measured of them: once of all with equal blocks, options and inputs.

    Args:
        samples: what the first nodes read; on the meta device, as all streams between nodes.
        measure: returns what it measured of a node, and the node's outputs.

    Raises:
        SpecError: nodes were refused. Those that follow one are left out, since they have no input.
    """
    memo = Memo[tuple[T, Streams]]()
    streams: dict[str, Streams] = {INPUT: samples}
    problems: list[Problem] = []
    for name in graph.order:
        node = graph.nodes[name]
        if any(producer not in streams for producer in node.inputs):
            continue
        inputs = tuple(stream for producer in node.inputs for stream in streams[producer])
        key = (
            node.plugin,
            node.options,
            node.kind,
            node.frozen and (node.name, *node.frozen),
            [(stream.shape, stream.dtype) for stream in inputs],
            INPUT in node.inputs,
        )
        try:
            found, streams[name] = memo.get(key, partial(measure, node, inputs))
        except SpecError as error:
            problems.extend(error.problems)
        else:
            yield name, found
    if problems:
        raise SpecError(problems)


def _measure(small: _SmallTensors, node: Node, inputs: Streams) -> tuple[NodeShapes, Streams]:
    shapes = _shapes(inputs)
    expected = node.plugin.code.streams if node.plugin else None
    given = len(inputs)
    if expected is not None and given != expected:
        message = f'node "{node.name}": block "{node.block}" reads {expected} streams, and its inputs carry {given}'
        between_nodes = expected > given and INPUT not in node.inputs
        hint = "a stem with streams = 2 feeds reversible blocks" if between_nodes else ""
        raise SpecError(Problem(message=message, hint=hint, path=node.path))
    block, outputs = _build_and_run(node, inputs, small)
    measured = NodeShapes(
        inputs=shapes,
        outputs=_shapes(outputs),
        dtypes=tuple(stream.dtype for stream in outputs),
        parameters=sum(parameter.numel() for parameter in block.parameters()),
        trained={name: one.numel() for name, one in block.named_parameters() if one.requires_grad},
        frozen=tuple(name for name, one in block.named_parameters() if not one.requires_grad),
        shared={
            name: SharedParameter(label=block.shared_parameters[name], values=one.numel(), trained=one.requires_grad)
            for name, one in block.named_parameters()
            if name in block.shared_parameters
        },
        several=isinstance(block, Head)
        and any(is_several(block.train(mode).returned(outputs)) for mode in (False, True)),
    )
    return measured, tuple(torch.empty(stream.shape, dtype=stream.dtype, device="meta") for stream in outputs)


class _SmallTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Stops whatever makes a tensor that is not small."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.exceeded = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation, and look at its result."""
        result = func(*args, **(kwargs or {}))
        if any(tensor.nbytes > _SMALL_BYTES for tensor in tensors(result)):
            self.exceeded = True
            raise MemoryError("the tensor is not small")
        return result


def _build_and_run(node: Node, inputs: Streams, small: _SmallTensors) -> tuple[Block, Streams]:
    if not small.exceeded:
        with suppress(SpecError, PluginError), torch.random.fork_rng(devices=[]), small:
            return _try_out(node, inputs, "cpu")
    try:
        return _try_out(node, inputs, "meta")  # if the block is wrong, this says why
    except SpecError as error:
        if not needs_values(error.__cause__):
            raise
    with torch.random.fork_rng(devices=[]):
        return _try_out(node, inputs, "cpu")


def _try_out(node: Node, inputs: Streams, device: Literal["meta", "cpu"]) -> tuple[Block, Streams]:
    """Build the block and run it; where the node is reversible, run its inverse too."""
    shapes = _shapes(inputs)
    with torch.device(device):
        block = build_block(node, shapes)
    zeros = [torch.zeros(stream.shape, dtype=stream.dtype, device=device) for stream in inputs]
    with refusing(node, shapes, "raised in its forward", by_torch="cannot read its input"):
        returned = _call(block, block, zeros)
    with refusing(node, shapes, "is wrong"):
        outputs = tuple(map(_handed_on, _streams(returned, len(zeros[0]))))
    if node.kind != "reversible":
        return block, outputs
    assert isinstance(block, Reversible)
    with refusing(node, shapes, "cannot invert its output"):
        returned = _streams(_call(block, block.invert, outputs), len(zeros[0]))
    if _shapes(returned) != shapes:
        message = f'node "{node.name}": the inverse of block "{node.block}" returns {listing(_shapes(returned))}'
        hint = f'it must return the input streams, {listing(shapes)}, in their order; or set kind = "buffered"'
        raise SpecError(Problem(message=message, hint=hint, path=node.path))
    return block, outputs


def _call(block: Block, function: Callable[..., Any], streams: Sequence[Tensor]) -> Any:
    with torch.no_grad(), frozen_statistics(block), ShapesAlone():  # type: ignore[no-untyped-call]
        return function(*streams)


def _streams(returned: Any, samples: int) -> Streams:
    """Check that a block returned streams whose batch has the expected size, and return them."""
    if not isinstance(returned, tuple) or not all(isinstance(stream, Tensor) for stream in returned):
        raise TypeError(f"it returned {type(returned).__name__}; a block returns a tensor or a tuple of tensors")
    if not returned:
        raise TypeError("it returned no stream")
    for stream in returned:
        if not stream.dim() or len(stream) != samples:
            came = f"it returned a stream {list(stream.shape)} for {samples} samples"
            raise TypeError(f"{came}; the batch is a stream's first dimension")
    return returned


def _handed_on(stream: Tensor) -> Tensor:
    """Return a stream as the next node reads it: a run brings real numbers to one type, so that no node is blamed for those of another."""
    return stream.to(torch.float32) if stream.is_floating_point() else stream


def _shapes(streams: Sequence[Tensor]) -> tuple[Shape, ...]:
    return tuple(tuple(stream.shape[1:]) for stream in streams)
