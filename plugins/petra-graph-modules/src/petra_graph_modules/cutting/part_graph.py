"""The operations of a part as a graph of their own, which reads streams [n, ...] and returns streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate

from petra_graph_modules.cutting.cannot_cut import CannotCut
from petra_graph_modules.cutting.joined_recordings import Size
from petra_graph_modules.cutting.operations import Device, enter_float32, leave_float32
from petra_graph_modules.cutting.parts import Part

_AS_COPIES = {"view": "reshape", "view_as": "reshape_as"}
"""Views of a value whose memory has another order in a node (channels-last) than in the network: copied where no view can be had."""


def make_part_graph(part: Part, twins: Mapping[fx.Node, fx.Node], returns: Sequence[fx.Node]) -> fx.Graph:
    """Return a part's operations as a graph of their own; `twins` has each operation as it is in training, or in evaluation.

    An operation of training alone is as it is there, where something that is handed on needs it.
    """
    graph = fx.Graph()
    streams = {node: graph.placeholder(f"stream{index}") for index, node in enumerate(part.reads)}
    like = next(iter(streams.values()))
    originals = {twin: node for node, twin in twins.items()}
    own = {node: _read(graph, part, node, stream) for node, stream in streams.items()}
    changed = {node for one in part.operations for node in one.meta.get("changes", ())}

    def argument(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return copied(originals.get(value, value))
        if isinstance(value, Size):
            of = next((one for node, one in streams.items() if node.meta.get("length") or not value.of_length), None)
            if of is None:
                raise CannotCut(f"node {part.name} reads no stream from which the length of its samples follows")
            return graph.call_function(size_of, (of, value.constant, value.of_n, value.of_t, value.of_both))
        if isinstance(value, Device):
            return graph.call_function(getattr, (like, "device"))
        return value

    def copied(node: fx.Node) -> fx.Node:
        if node not in own:  # an operation of this part; a parameter or repeated value is read where it is used
            twin = twins.get(node, node)
            args = map_aggregate(twin.meta.get("args", twin.args), argument)
            kwargs = dict(map_aggregate(twin.meta.get("kwargs", dict(twin.kwargs)), argument))
            if kwargs.get("inplace") and only_reads(part, node):
                kwargs["inplace"] = False
            views = node.op == "call_method" and node.target in _AS_COPIES and torch.dtype not in map(type, args)
            target = _AS_COPIES[str(node.target)] if views and node not in changed else node.target
            with _region_of(node, graph, like):
                own[node] = graph.create_node(node.op, target, args, kwargs)
        return own[node]

    for node in filter(twins.__contains__, part.operations):
        copied(node)
    graph.output(
        tuple(
            copied(node)
            if node.meta.get("rows", True)
            else graph.call_function(as_rows, (copied(node), like, node.meta["samples"]))
            for node in returns
        )
    )
    return graph


@contextmanager
def _region_of(node: fx.Node, graph: fx.Graph, like: fx.Node) -> Iterator[None]:
    """Put an operation between the calls that switch autocast off and on again, if the forward does that around it."""
    region = graph.call_function(enter_float32, (like,)) if node.meta.get("float32") else None
    yield
    if region is not None:
        graph.call_function(leave_float32, (region,))


def _read(graph: fx.Graph, part: Part, node: fx.Node, stream: fx.Node) -> fx.Node:
    """Return what a part reads of a stream, which none of its operations may change."""
    read = stream if node.meta.get("rows", True) else graph.call_function(of_rows, (stream, node.meta["samples"]))
    changing = [one for one in part.operations if node in one.meta.get("changes", ())]
    switched_off = all(
        only_reads(part, one) and (one.kwargs.get("inplace") or one.meta.get("inplace")) for one in changing
    )
    return read if switched_off else graph.call_method("clone", (read,))


def size_of(stream: Tensor, constant: int, of_n: int, of_t: int, of_both: int) -> int:
    """Return a number that follows from the sizes of a stream [n, t, ...]."""
    n, t = stream.shape[0], stream.shape[1] if of_t or of_both else 0
    return constant + of_n * n + of_t * t + of_both * n * t


def as_rows(value: Tensor, like: Tensor, samples: int | None) -> Tensor:
    """Return a value as a stream [n, ...]: its samples, which are in another dimension, or all of it for each sample."""
    if samples is None:
        return value.unsqueeze(0).expand(like.shape[0], *value.shape)
    return torch.unflatten(value, samples, (like.shape[0], -1)).movedim(samples, 0)


def of_rows(stream: Tensor, samples: int | None) -> Tensor:
    """Return the value that was made a stream; `contiguous`, so that it is the same whether the stream was copied on its way."""
    return stream[0] if samples is None else stream.movedim(0, samples).flatten(samples, samples + 1).contiguous()


def only_reads(part: Part, operation: fx.Node) -> bool:
    """Whether an operation on a stream has to leave it as it is, and nothing reads what it would have made of it."""
    streams = set(part.reads) & set(operation.all_input_nodes)
    return bool(streams) and ("changes" not in operation.meta or all(len(one.users) == 1 for one in streams))
