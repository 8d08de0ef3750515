"""A network cut into pieces in a chain, by its own structure.

The network's forward is traced by torch.fx down to its *units*: residual blocks, and layers outside of them. What is traced
through are containers (`_is_container`). A cut is possible where one tensor alone is handed on, or, among the units of one
container, the outputs of several units: so a dense layer, which reads all features before it, is a unit that can be cut off.

Too many cuts are possible: each normalisation and activation of a VGG would be a node. A piece therefore has one unit with a
weight matrix or kernel, and what has none goes with the unit before it in the same container, or with the next.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import pairwise, takewhile
from typing import Any

import torch
from attrs import frozen
from torch import fx, nn

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_OPERATIONS = ("call_module", "call_function", "call_method")
_MATRIX = 2
"""The fewest dimensions of a weight that mixes features."""


@frozen
class Piece:
    """Consecutive operations of a traced network."""

    name: str
    """The qualified name of its unit with weights."""
    operations: tuple[fx.Node, ...]
    reads: tuple[fx.Node, ...]
    """The values that come from the piece before; the network's input for the first."""
    returns: tuple[fx.Node, ...]
    """The values that the next piece reads; the network's output for the last."""


class CannotCut(Exception):
    """A network cannot be cut; the message says why."""


def traced(network: nn.Module) -> fx.Graph:
    """Return the operations of a network's forward, units as single operations.

    Raises:
        CannotCut: its forward depends on values.
    """
    try:
        return _Tracer().trace(network)
    except (fx.proxy.TraceError, TypeError) as error:
        raise CannotCut(f"its forward depends on values, which cannot be traced: {error}") from None


def cut(network: nn.Module, graph: fx.Graph) -> tuple[Piece, ...]:
    """Return the pieces of a traced network, in order; the last one has the head.

    Raises:
        CannotCut: it has no place to be cut at, or reads or returns more than one tensor.
    """
    inputs = [node for node in graph.nodes if node.op == "placeholder" and node.users]
    (output,) = (node.args[0] for node in graph.nodes if node.op == "output")
    if len(inputs) != 1 or not isinstance(output, fx.Node):
        raise CannotCut("it reads or returns more than one tensor")
    operations = [node for node in graph.nodes if node.op in _OPERATIONS]
    groups = _grouped(network, _finest(network, inputs[0], operations))
    if len(groups) == 1:
        raise CannotCut("there is no place where one tensor alone is handed on")
    if twice := _in_several(network, groups):
        raise CannotCut(f"{', '.join(twice)} would be in several nodes, which share no parameters")
    names = _names(network, groups)
    ends = [crossing(inputs[0], operations, len(part)) for part in _heads(groups)]
    bounds = [(inputs[0],), *ends, (output,)]
    return tuple(
        Piece(name, tuple(group), reads, returns)
        for name, group, (reads, returns) in zip(names, groups, pairwise(bounds), strict=True)
    )


def crossing(first: fx.Node, operations: Sequence[fx.Node], count: int) -> tuple[fx.Node, ...]:
    """Return the values that exist after `count` operations and are read later, in their order."""
    before = [first, *operations[:count]]
    later = set(operations[count:])
    return tuple(node for node in before if any(user in later or user.op == "output" for user in node.users))


def adds_its_input(network: nn.Module, piece: Piece) -> bool:
    """Return whether a piece is one block that adds its input to a function of it, in its first addition at least."""
    if len(piece.operations) != 1 or piece.operations[0].op != "call_module":
        return False
    block = network.get_submodule(str(piece.operations[0].target))
    try:
        inside = fx.symbolic_trace(block)
    except (fx.proxy.TraceError, TypeError):
        return False
    adds = {operator.add, operator.iadd, torch.add}
    return any(
        node.target in adds and any(one.op == "placeholder" for one in node.all_input_nodes)
        for node in inside.graph.nodes
    )


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not _is_container(m)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        path = self.scope.module_path
        node.meta["container"] = path.rpartition(".")[0] if node.op == "call_module" else path
        return node


def _is_container(module: nn.Module) -> bool:
    """Whether a module only puts units together: a list of modules, or a module of torchvision that holds a list of blocks."""
    if isinstance(module, _CONTAINERS):
        return True
    lists = [child for child in module.children() if isinstance(child, _CONTAINERS)]
    return any(_is_block(item) for child in lists for item in child.children())


def _is_block(module: nn.Module) -> bool:
    """Whether a module is a block of a family of networks, and no layer of torch or torchvision.ops."""
    return type(module).__module__.startswith("torchvision.models.") and not isinstance(module, nn.Sequential)


def _finest(network: nn.Module, first: fx.Node, operations: Sequence[fx.Node]) -> list[list[fx.Node]]:
    """Split operations wherever a cut is possible."""
    parts: list[list[fx.Node]] = [[]]
    for count, node in enumerate(operations, 1):
        parts[-1].append(node)
        values = crossing(first, operations, count)
        if len(values) == 1 or _in_one_list(network, node, values):
            parts.append([])
    return [part for part in parts if part]


def _in_one_list(network: nn.Module, node: fx.Node, values: Sequence[fx.Node]) -> bool:
    """Whether values are units' outputs, all but the first of a list of modules that `node` belongs to, too.

    A `Sequential` hands on one value; the owner of any other list decides, as a dense block does.
    """
    container = node.meta["container"]
    inside = isinstance(network.get_submodule(container), nn.ModuleList | nn.ModuleDict)
    return (
        inside
        and all(value.op == "call_module" for value in values)
        and all(value.meta["container"] == container for value in values[1:])
    )


def _grouped(network: nn.Module, parts: Sequence[list[fx.Node]]) -> list[list[fx.Node]]:
    """Join parts without weights to one with weights."""
    groups: list[list[fx.Node]] = []
    waiting: list[fx.Node] = []
    for part in parts:
        container = part[0].meta["container"]
        if any(_weighs(network, node) for node in part):
            groups.append([*waiting, *part])
            waiting = []
        elif groups and not waiting and (len(groups) == 1 or groups[-1][-1].meta["container"] == container):
            groups[-1] += part
        else:
            waiting += part
    groups[-1] += waiting
    return groups


def _weighs(network: nn.Module, node: fx.Node) -> bool:
    if node.op != "call_module":
        return False
    return any(parameter.dim() >= _MATRIX for parameter in network.get_submodule(str(node.target)).parameters())


def _in_several(network: nn.Module, groups: Iterable[Sequence[fx.Node]]) -> list[str]:
    """Return the modules and parameters with values to be learned that several groups read."""
    readers: dict[str, set[int]] = {}
    for index, group in enumerate(groups):
        for node in group:
            named = (
                [node] if node.op == "call_module" else [one for one in node.all_input_nodes if one.op == "get_attr"]
            )
            for one in named:
                readers.setdefault(str(one.target), set()).add(index)
    several = [name for name, found in readers.items() if len(found) > 1]
    return [name for name in several if _learns(network, name)]


def _learns(network: nn.Module, name: str) -> bool:
    learned = dict(network.named_parameters())
    return any(key == name or key.startswith(f"{name}.") for key in learned)


def _names(network: nn.Module, groups: Iterable[Sequence[fx.Node]]) -> list[str]:
    """Return the module that each group is about: its one with weights, or the container of several."""
    names: list[str] = []
    for group in groups:
        weighing = [str(node.target) for node in group if _weighs(network, node)]
        levels = zip(*[name.split(".") for name in weighing], strict=False)
        common = ".".join(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels))
        names.append(common if common and common not in names else weighing[0])
    return names


def _heads(groups: Sequence[list[fx.Node]]) -> list[list[fx.Node]]:
    """Return all operations up to the end of each group but the last."""
    return [[node for group in groups[:count] for node in group] for count in range(1, len(groups))]
