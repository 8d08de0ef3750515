"""The cost table of a network: the operations of every node run once, without memory.

    compute             device
    float32, float64    the meta device
    bfloat16, attention fake tensors of the CPU, for which autocast works and kernels are chosen as on the CPU
    a block or loss     the CPU, with values
    that needs values

Nodes with equal blocks, options and inputs cost the same, and one of them runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial

import torch
from attrs import frozen
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from petra_graph.blocks import Block, Shape
from petra_graph.errors import PetraGraphError, Problem, SpecError, at_path, raised_text
from petra_graph.executor.numerics import Normalisation, NumericsContext, place
from petra_graph.graph.node_graph import INPUT, Node, NodeGraph
from petra_graph.measure.build_block import build_block
from petra_graph.measure.node_shapes import Memo
from petra_graph.measure.node_work import Conditions, measure_operations, measure_update, without_values
from petra_graph.measure.tally import NotOnMeta, distinct_bytes
from petra_graph.measure.without_compiler import uncompiled
from petra_graph.plugins.author_code import author_line
from petra_graph.plugins.data_set import zero_targets
from petra_graph.plugins.tensor_trees import leaves
from petra_graph.program.node_costs import CostTable, NodeCost, Operation, SharedCost, Work


@uncompiled()
def measure_costs(graph: NodeGraph, conditions: Conditions) -> CostTable:
    """Run the operations of all nodes.

    Raises:
        SpecError: a block can be run neither without values nor on the CPU.
        PluginError: a block's code cannot be imported.
    """
    measured: dict[str, _Measured] = {}
    memo = Memo[_Measured]()
    samples = tuple(
        _Stream(shape=shape, dtype=getattr(torch, dtype)) for shape, dtype in conditions.facts.inputs.values()
    )
    streams: dict[str, tuple[_Stream, ...]] = {INPUT: samples}
    for name in graph.order:
        node = graph.nodes[name]
        inputs = tuple(stream for producer in node.inputs for stream in streams[producer])
        frozen_names = node.frozen and (node.name, *node.frozen)
        key = (node.plugin, node.options, node.kind, frozen_names, inputs, INPUT in node.inputs)
        measured[name] = memo.get(key, partial(_measure, node, inputs, conditions))
        streams[name] = measured[name].outputs
    return CostTable(
        micro_batch=conditions.batch,
        sample_bytes=tuple(one.bytes(conditions.batch) for one in samples),
        target_bytes=sum(
            one.nbytes for one in leaves(zero_targets(conditions.facts, conditions.batch, torch.device("meta")))
        ),
        nodes={name: node.cost for name, node in measured.items()},
        assumptions=tuple(_assumptions(conditions, measured)),
    )


@frozen(kw_only=True)
class _Stream:
    """The shape and type of a stream."""

    shape: Shape
    """Without the batch dimension."""
    dtype: torch.dtype

    def values(self, batch: int) -> int:
        return batch * torch.Size(self.shape).numel()

    def bytes(self, batch: int) -> int:
        return self.values(batch) * self.dtype.itemsize


@frozen(kw_only=True)
class _Measured:
    cost: NodeCost
    outputs: tuple[_Stream, ...]
    obstacle: str | None
    """Why the node ran on the CPU; None: it ran without memory."""


def _measure(node: Node, inputs: tuple[_Stream, ...], conditions: Conditions) -> _Measured:
    obstacle = None
    try:
        module, outputs, work = _run_without_memory(node, inputs, conditions)
    except Exception as error:  # noqa: BLE001  whatever stops a block without memory, the CPU decides
        cause = error.__cause__ if isinstance(error, PetraGraphError) and error.__cause__ else error
        obstacle = f"{type(cause).__name__}: {cause}".partition("\n")[0]
        module, outputs, work = _run_on_cpu(node, inputs, conditions)
    with at_path("optimizer", "name"):
        state_bytes, of_optimizer = measure_update(module, conditions)
    batch, parameters, buffers = conditions.batch, dict(module.named_parameters()), list(module.buffers())
    cost = NodeCost(
        kind=node.kind,
        parameters=sum(one.numel() for one in parameters.values()),
        parameter_tensors=len(parameters),
        parameter_bytes=distinct_bytes(parameters.values()),
        gradient_bytes=sum(map(_gradient_bytes, parameters.values())),
        statistics=sum(buffer.numel() for buffer in buffers if buffer.is_floating_point()),
        statistics_bytes=distinct_bytes(buffers),
        optimizer_bytes=state_bytes,
        input_values=tuple(stream.values(batch) for stream in inputs),
        input_bytes=tuple(stream.bytes(batch) for stream in inputs),
        output_bytes=tuple(stream.bytes(batch) for stream in outputs),
        work={**work, **of_optimizer},
        shared={
            label: SharedCost(values=one.numel(), parameter_bytes=one.nbytes, gradient_bytes=_gradient_bytes(one))
            for label, one in ((label, parameters.get(key)) for key, label in module.shared_parameters.items())
            if one is not None
        },
    )
    return _Measured(cost=cost, outputs=outputs, obstacle=obstacle)


def _gradient_bytes(parameter: Tensor) -> int:
    return parameter.nbytes if parameter.requires_grad else 0


_Ran = tuple[Block, tuple[_Stream, ...], Mapping[Operation, Work]]
"""A node's module, its outputs, and the work of its operations."""


def _run_without_memory(node: Node, inputs: tuple[_Stream, ...], conditions: Conditions) -> _Ran:
    on_meta = _numerics(conditions, "meta")
    module = _built(node, inputs, on_meta)
    if conditions.precision.compute != "bfloat16":
        with suppress(NotOnMeta):
            return _run(node, module, inputs, conditions, on_meta)
    with FakeTensorMode():
        return _run(node, without_values(module), inputs, conditions, _numerics(conditions, "cpu"))


def _run_on_cpu(node: Node, inputs: tuple[_Stream, ...], conditions: Conditions) -> _Ran:
    """Run with values.

    Raises:
        SpecError: the CPU cannot run the block either.
    """
    numerics = _numerics(conditions, "cpu")
    try:
        with torch.random.fork_rng(devices=[]):
            return _run(node, _built(node, inputs, numerics), inputs, conditions, numerics)
    except PetraGraphError:
        raise
    except Exception as error:
        message = f'node "{node.name}": block "{node.block}" cannot be trained: {raised_text(error)}'
        at = author_line(error)
        raise SpecError(Problem(message=message, hint=at and f"raised at {at}", path=node.path)) from error


@frozen(kw_only=True, slots=False)
class _Numerics(NumericsContext):
    """Numerics without autocast on the meta device, whose tensors autocast does not know."""

    def arithmetic(self) -> AbstractContextManager[None]:
        """Return a context with the arithmetic of a device with values."""
        return nullcontext() if self.device.type == "meta" else super().arithmetic()


def _numerics(conditions: Conditions, device: str) -> NumericsContext:
    normalisation = Normalisation.of(conditions.facts)
    return _Numerics(device=torch.device(device), precision=conditions.precision, seed=0, normalisation=normalisation)


def _built(node: Node, inputs: tuple[_Stream, ...], numerics: NumericsContext) -> Block:
    with torch.device(numerics.device):
        return place(build_block(node, [stream.shape for stream in inputs]), numerics)


def _run(
    node: Node, module: Block, inputs: tuple[_Stream, ...], conditions: Conditions, numerics: NumericsContext
) -> _Ran:
    def zeros(stream: _Stream) -> Tensor:
        """Return a stream in the memory format between nodes; most loaders have samples contiguous."""
        layout = torch.contiguous_format if INPUT in node.inputs else numerics.memory_format(len(stream.shape) + 1)
        made = torch.zeros(conditions.batch, *stream.shape, dtype=stream.dtype, device=numerics.device)
        return made.contiguous(memory_format=layout)

    returned, work = measure_operations(node, module, tuple(map(zeros, inputs)), numerics, conditions)
    return module, tuple(_Stream(shape=tuple(one.shape[1:]), dtype=one.dtype) for one in returned), work


def _assumptions(conditions: Conditions, measured: Mapping[str, _Measured]) -> Iterator[str]:
    """Yield the conditions under which the numbers hold."""
    yield "working bytes are those of PyTorch's operations; what kernels allocate inside themselves is not in them"
    if conditions.precision.compute == "bfloat16":
        yield "autocast was taken as on the CPU; a GPU casts other operations"
    yield "the optimizer's step was taken tensor by tensor, as on the CPU"
    if conditions.clip is not None:
        yield "clipping counts for bytes and not for time"
    for name, node in measured.items():
        if node.obstacle is not None:
            yield f"node {name} needs values ({node.obstacle}): run on the CPU"
