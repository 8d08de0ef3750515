"""The output streams of every node, measured without memory.

Blocks are built and run with a batch of two on torch's meta device, where shapes and dtypes are real and data is not. A block that the meta
device cannot build or run (it reads values) is built and run on the CPU, however large it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from attrs import frozen
from torch import Tensor

from petra_graph.blocks import Block, Head, Reversible, Shape, Streams, frozen_statistics
from petra_graph.errors import Problem, SpecError
from petra_graph.graph.node_graph import INPUT, Node, NodeGraph
from petra_graph.measure.build_block import build_block, listing, refusing, without_values
from petra_graph.measure.without_compiler import uncompiled
from petra_graph.plugins.data_set import DataFacts
from petra_graph.plugins.tensor_trees import is_several
from petra_graph.program.channels import StreamType

T = TypeVar("T")
_BATCH = 2


@frozen(kw_only=True)
class NodeParameter:
    """A parameter of one node."""

    values: int
    trained: bool
    label: str
    """Its one name in all nodes that have it, as in `Block.shared_parameters`; "" if it is this node's alone."""


@frozen(kw_only=True)
class NodeShapes:
    """Shapes of one node's streams, without the batch dimension, and its parameters."""

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    dtypes: tuple[torch.dtype, ...]
    """Element types of the outputs, as a network in float32 returns them."""
    named: Mapping[str, NodeParameter]
    """Its parameters, by their names in the block."""
    several: bool
    """Whether it is a head that gives the loss several tensors, or one in a structure."""

    @property
    def parameters(self) -> int:
        """Number of their values."""
        return sum(one.values for one in self.named.values())

    @property
    def shared(self) -> Mapping[str, NodeParameter]:
        """The parameters that other nodes have too."""
        return {name: one for name, one in self.named.items() if one.label}

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
    """Run all nodes in order; SpecError: blocks refuse their input, or their inverses do not return shapes; PluginError: as `build_block`."""
    samples = (
        torch.empty(_BATCH, *shape, dtype=torch.int64 if dtype == "int64" else torch.float32, device="meta")
        for shape, dtype in facts.inputs.values()
    )
    return dict(each_node(graph, tuple(samples), _measure))


def each_node(
    graph: NodeGraph, samples: Streams, measure: Callable[[Node, Streams], tuple[T, Streams]]
) -> Iterator[tuple[str, T]]:
    """Yield the nodes in order, with what is measured of them: once of all with equal blocks, options and inputs.

    Streams are on the meta device. `measure` also returns the node's outputs. SpecError: nodes were refused; those that follow one are left out.
    """
    memo = Memo[tuple[T, Streams]]()
    streams: dict[str, Streams] = {INPUT: samples}
    problems: list[Problem] = []
    for name in graph.order:
        node = graph.nodes[name]
        if any(producer not in streams for producer in node.inputs):
            continue
        inputs = tuple(stream for producer in node.inputs for stream in streams[producer])
        of_name = node.frozen and (node.name, *node.frozen)
        read = [(stream.shape, stream.dtype) for stream in inputs]
        key = (node.plugin, node.options, node.kind, of_name, read, INPUT in node.inputs)
        try:
            found, streams[name] = memo.get(key, partial(measure, node, inputs))
        except SpecError as error:
            problems.extend(error.problems)
        else:
            yield name, found
    if problems:
        raise SpecError(problems)


def _measure(node: Node, inputs: Streams) -> tuple[NodeShapes, Streams]:
    expected = node.plugin.code.streams if node.plugin else None
    if expected is not None and (given := len(inputs)) != expected:
        message = f'node "{node.name}": block "{node.block}" reads {expected} streams, and its inputs carry {given}'
        between_nodes = expected > given and INPUT not in node.inputs
        hint = "a stem with streams = 2 feeds reversible blocks" if between_nodes else ""
        raise SpecError(Problem(message=message, hint=hint, path=node.path))
    block, outputs, several = without_values(partial(_build_and_run, node, inputs))
    labels = block.shared_parameters
    measured = NodeShapes(
        inputs=_shapes(inputs),
        outputs=_shapes(outputs),
        dtypes=tuple(stream.dtype for stream in outputs),
        named={
            name: NodeParameter(values=one.numel(), trained=one.requires_grad, label=labels.get(name, ""))
            for name, one in block.named_parameters()
        },
        several=several,
    )
    return measured, tuple(torch.empty_like(stream, device="meta").contiguous() for stream in outputs)


def _build_and_run(node: Node, inputs: Streams, device: str) -> tuple[Block, Streams, bool]:
    """Build a block and run it, and where the node is reversible its inverse; return also whether it is a head with `several` results."""
    shapes = _shapes(inputs)
    with torch.device(device):
        block = build_block(node, shapes)
        zeros = [torch.zeros(stream.shape, dtype=stream.dtype) for stream in inputs]
    with torch.no_grad(), frozen_statistics(block):
        with refusing(node, shapes, "raised in its forward", by_torch="cannot read its input"):
            returned = block(*zeros)
        with refusing(node, shapes, "is wrong"):
            outputs = _checked_streams(returned)
        # A run brings real numbers to one type, so that no node is blamed for those of another.
        outputs = tuple(one.to(torch.float32) if one.is_floating_point() else one for one in outputs)
        if isinstance(block, Reversible) and node.kind == "reversible":
            with refusing(node, shapes, "cannot invert its output"):
                inverted = _shapes(_checked_streams(block.invert(*outputs)))
            if inverted != shapes:
                message = f'node "{node.name}": the inverse of block "{node.block}" returns {listing(inverted)}'
                hint = f'it must return the input streams, {listing(shapes)}, in their order; or set kind = "buffered"'
                raise SpecError(Problem(message=message, hint=hint, path=node.path))
    with refusing(node, shapes, "raised in its `returned`"):
        several = isinstance(block, Head) and any(
            is_several(block.train(mode).returned(outputs)) for mode in (False, True)
        )
    return block, outputs, several


def _checked_streams(returned: Any) -> Streams:
    """Return what a block returned, if it is streams with the batch as their first dimension."""
    if not isinstance(returned, tuple) or not all(isinstance(stream, Tensor) for stream in returned):
        raise TypeError(f"it returned {type(returned).__name__}; a block returns a tensor or a tuple of tensors")
    if not returned:
        raise TypeError("it returned no stream")
    for stream in returned:
        if not stream.dim() or len(stream) != _BATCH:
            came = f"it returned a stream {list(stream.shape)} for {_BATCH} samples"
            raise TypeError(f"{came}; the batch is a stream's first dimension")
    return returned


def _shapes(streams: Sequence[Tensor]) -> tuple[Shape, ...]:
    return tuple(tuple(stream.shape[1:]) for stream in streams)
