"""What every node returns, found by running it without memory.

Blocks are built and run on torch's meta device: shapes and dtypes are real, data is not. A block that the meta device
cannot run (it reads values) is run on the CPU, with a batch of two. Modules are built here once more for training, so
that what is measured is what is trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from petra_graph.blocks import Additive, Block, Shape, frozen_statistics
from petra_graph.errors import PetraGraphError, PluginError, Problem, SpecError
from petra_graph.graph.stage_graph import INPUT, Node, StageGraph
from petra_graph.registry.building import load

_BATCH = 2


@frozen(kw_only=True)
class NodeShapes:
    """Shapes of one node's streams, without the batch dimension, and its parameters."""

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    parameters: int
    """Number of trained values."""
    additive: bool
    """The block only adds to its streams, so that it is exact on a grid."""


def build_block(node: Node, inputs: Sequence[Shape]) -> Block:
    """Build a node's module on torch's current default device.

    Raises:
        SpecError: the block refuses these shapes or options.
        PluginError: the block's code cannot be imported, or is no Block.
    """
    assert node.plugin is not None
    block_class = load(node.plugin)
    if not (isinstance(block_class, type) and issubclass(block_class, Block)):
        message = f'block "{node.block}": {node.plugin.declaration.build} is no subclass of petra_graph.blocks.Block'
        raise PluginError(Problem(message=message, hint="subclass AdditiveCoupling, Buffered or Head", path=node.path))
    try:
        return block_class(inputs, node.options)
    except PetraGraphError:
        raise
    except Exception as error:
        raise SpecError(_refused(node, inputs, "cannot be built", error)) from error


def measure_shapes(graph: StageGraph, sample: Shape, dtype: torch.dtype) -> Mapping[str, NodeShapes]:
    """Run all nodes in order.

    Args:
        graph: the network.
        sample: one sample as the first node sees it, without the batch dimension.
        dtype: its element type as the first node sees it.

    Raises:
        SpecError: a block refuses its input, or a reversible node changes shapes. A block that fails ends the walk
            along its branch, since what follows has no input.
    """
    found: dict[str, NodeShapes] = {}
    streams: dict[str, tuple[Tensor, ...]] = {INPUT: (torch.empty(_BATCH, *sample, dtype=dtype, device="meta"),)}
    problems: list[Problem] = []
    for name in graph.order:
        node = graph.nodes[name]
        if any(producer not in streams for producer in node.inputs):
            continue
        inputs = tuple(stream for producer in node.inputs for stream in streams[producer])
        try:
            found[name], streams[name] = _measure(node, inputs)
        except SpecError as error:
            problems.extend(error.problems)
    if problems:
        raise SpecError(problems)
    return found


def _measure(node: Node, inputs: tuple[Tensor, ...]) -> tuple[NodeShapes, tuple[Tensor, ...]]:
    shapes = tuple(tuple(stream.shape[1:]) for stream in inputs)
    wanted = node.declaration.streams if node.declaration else None
    if wanted is not None and len(inputs) != wanted:
        message = f'node "{node.name}": block "{node.block}" reads {wanted} streams, and its inputs carry {len(inputs)}'
        raise SpecError(Problem(message=message, hint=_stream_hint(wanted, len(inputs)), path=node.path))
    with torch.device("meta"):
        block = build_block(node, shapes)
    try:
        outputs = _run(block, inputs)
    except Exception as error:
        if not _needs_values(error):
            raise SpecError(_refused(node, shapes, "cannot read its input", error)) from error
        outputs = _run_on_cpu(node, inputs, shapes)
    result = tuple(tuple(stream.shape[1:]) for stream in outputs)
    if node.kind == "reversible" and result != shapes:
        message = f'node "{node.name}" is reversible but changes shapes: {_listing(shapes)} to {_listing(result)}'
        raise SpecError(Problem(message=message, hint='set kind = "buffered"', path=node.path))
    parameters = sum(parameter.numel() for parameter in block.parameters())
    measured = NodeShapes(inputs=shapes, outputs=result, parameters=parameters, additive=isinstance(block, Additive))
    return measured, outputs


def _run(block: Block, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    with torch.no_grad(), frozen_statistics(block):
        outputs: Any = block(*inputs)
    if not isinstance(outputs, tuple) or not all(isinstance(stream, Tensor) for stream in outputs):
        message = f"it returned {type(outputs).__name__}; a block returns a tuple of tensors"
        raise TypeError(message)
    return outputs


def _needs_values(error: Exception) -> bool:
    """Whether the meta device is what stopped a block; torch has no one class for that, but each message names it."""
    return isinstance(error, NotImplementedError) or "meta" in str(error).lower()


def _run_on_cpu(node: Node, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> tuple[Tensor, ...]:
    try:
        outputs = _run(build_block(node, shapes), [torch.zeros_like(stream, device="cpu") for stream in inputs])
    except Exception as error:
        raise SpecError(_refused(node, shapes, "cannot read its input", error)) from error
    return tuple(stream.to("meta") for stream in outputs)


def _refused(node: Node, shapes: Sequence[Shape], what: str, error: Exception) -> Problem:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return Problem(
        message=f'node "{node.name}": block "{node.block}" {what}: {reason}',
        hint=f"its input streams are {_listing(shapes)} (without the batch); it reads {', '.join(node.inputs)}",
        path=node.path,
    )


def _stream_hint(wanted: int, came: int) -> str:
    if wanted > came:
        return "a stem with streams = 2 feeds reversible blocks"
    return 'merge nodes read several streams (block = "add"); others read one node'


def _listing(shapes: Sequence[Shape]) -> str:
    return ", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)
