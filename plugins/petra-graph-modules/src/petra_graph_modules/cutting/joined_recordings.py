"""A forward recorded with several sizes, as one graph: numbers that follow from the sizes are computed again when it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import fx

from petra_graph_modules.cutting.cannot_cut import CannotCut
from petra_graph_modules.cutting.two_modes import expect_alike

BATCHES = (3, 5)
"""Sizes of the batch with which a forward is recorded."""


@frozen
class Size:
    """A number that follows from the sizes of a batch: constant + of_n n + of_t t + of_both n t, of n samples of length t."""

    constant: int
    of_n: int
    of_t: int = 0
    of_both: int = 0

    @property
    def of_length(self) -> bool:
        return bool(self.of_t or self.of_both)

    def __call__(self, n: int, t: int) -> int:
        return self.constant + self.of_n * n + self.of_t * t + self.of_both * n * t


def join_recordings(graphs: Mapping[tuple[int, int], fx.Graph]) -> fx.Graph:
    """Return one graph of those recorded with several sizes, with the numbers that follow from sizes as `Size`."""
    (first, one), *others = graphs.items()
    alike = [(first, one)]
    for sizes, graph in others:
        try:
            expect_alike(one, graph, "with other sizes of the batch")
        except CannotCut:
            if sizes[1] == first[1]:
                raise
            continue  # the network reads samples of one length alone
        alike.append((sizes, graph))
    if len({t for (_, t), _ in alike}) > 1 and len(alike) < 2 * len(BATCHES):
        alike = [(sizes, graph) for sizes, graph in alike if sizes[1] == first[1]]
    if len(alike) > len(BATCHES):
        try:
            return _merged(alike)
        except CannotCut:
            alike = alike[: len(BATCHES)]
    return _merged(alike)


def _merged(alike: Sequence[tuple[tuple[int, int], fx.Graph]]) -> fx.Graph:
    one = alike[0][1]
    changes = []
    for nodes in zip(*[graph.nodes for _, graph in alike], strict=True):
        sizes = [sizes for sizes, _ in alike]

        def value(*values: Any, node: fx.Node = nodes[0], sizes: Sequence[tuple[int, int]] = sizes) -> Any:
            return _find_size(values, sizes, node)

        args = _map_alike(value, [node.args for node in nodes])
        kwargs = _map_alike(value, [dict(node.kwargs) for node in nodes])
        changes.append((nodes[0], args, kwargs))
        if "shape" in nodes[0].meta:
            nodes[0].meta.update(_layout([node.meta["shape"] for node in nodes], sizes))
    for node, args, kwargs in changes:
        node.meta["args"], node.meta["kwargs"] = args, kwargs
    return one


def _layout(shapes: Sequence[tuple[int, ...]], sizes: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return where a value has its samples.

    Returns:
        `samples`: the dimension that has them, alone or times another number, as in [t, n, width] and [n t, width]; None: all samples share it.
        `rows`: whether it is [n, ...].
        `length`: whether a row of it is [t, ...].
    """
    found: dict[int, float] = {}
    for at, lengths in enumerate(zip(*shapes, strict=False)):
        times = {(length / n, t) for length, (n, t) in zip(lengths, sizes, strict=True)}
        if lengths[0] and len(times) == len({t for _, t in sizes}) and all(one.is_integer() for one, _ in times):
            found[at] = max(one for one, _ in times)
    samples = min(found, key=found.__getitem__, default=None)
    rows = samples == 0 and found[0] == 1
    of_row = [
        shape[1:2] if rows else (shape[0] // n,) if samples == 0 else shape[:1]
        for shape, (n, _) in zip(shapes, sizes, strict=True)
    ]
    return {"samples": samples, "rows": rows, "length": of_row == [(t,) for _, t in sizes]}


def _map_alike(function: Callable[..., Any], values: Sequence[Any]) -> Any:
    """Apply a function to the plain values at each place of several like structures; nodes are those of the first."""
    first = values[0]
    if isinstance(first, fx.Node):
        return first
    if isinstance(first, tuple | list) and len({len(one) for one in values}) == 1:
        items = [_map_alike(function, list(item)) for item in zip(*values, strict=True)]
        return tuple(items) if isinstance(first, tuple) else items
    if isinstance(first, dict):
        return {key: _map_alike(function, [one[key] for one in values]) for key in first}
    if isinstance(first, slice):
        parts = [_map_alike(function, [getattr(one, name) for one in values]) for name in ("start", "stop", "step")]
        return slice(*parts)
    return function(*values)


def _find_size(values: Sequence[Any], sizes: Sequence[tuple[int, int]], node: fx.Node) -> Any:
    if all(type(one) is type(values[0]) and one == values[0] for one in values):
        return values[0]
    if all(type(one) is int for one in values):
        basis = [[1, n, *([t, n * t] if len(values) > len(BATCHES) else [])] for n, t in sizes]
        found = Size(
            *map(round, torch.linalg.solve(torch.tensor(basis).double(), torch.tensor(values).double()).tolist())
        )
        if [found(*one) for one in sizes] == list(values):
            return found
    raise CannotCut(
        f"{node.meta.get('line', '')}: an argument follows from the size of the batch, as {values[0]!r} and {values[1]!r}"
    )
