"""The operations of a network as consecutive parts, each of which is a node.

Between two units with nodes of their own, the cut is where the fewest numbers are handed on. Operations without a node join the one before
where they belong to the same module, and otherwise the one after.

A part reads values of the part before it; a value that several parts in a row read is handed on from one to the next. A part that is
farther away, as at the other end of a skip edge, reads the part that makes the value. The first part reads all inputs of a sample, and
hands on those that later parts read: so the towers of two inputs are branches of the graph behind it.

Values that follow from sizes and buffers alone, such as positions and causal masks, are computed in each part that reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, takewhile
from math import prod

from attrs import frozen
from torch import fx, nn

from petra_graph_modules.cutting.cannot_cut import CannotCut

_OPERATIONS = ("call_module", "call_function", "call_method")


@frozen(eq=False)
class Part:
    """Consecutive operations of a network."""

    name: str
    """The qualified name of its unit."""
    operations: tuple[fx.Node, ...]
    sources: tuple[int, ...]
    """The parts that it reads, by number, in order; none: the samples."""
    reads: tuple[fx.Node, ...]
    """All values that these return, in their order."""
    returns: tuple[fx.Node, ...]
    """The values that later parts read; the network's output for the last."""


MayCut = Callable[[fx.Node, Sequence[fx.Node]], bool]
"""An operation, and the values that are handed on after it -> whether the network may be cut there."""


def parts_of(
    network: nn.Module, graph: fx.Graph, has_node: Callable[[str], bool], may_cut: MayCut = lambda *_: True
) -> tuple[Part, ...]:
    """Return the parts of a network, in order; the last one has the head.

    Args:
        network: which the graph is of.
        graph: of its operations.
        has_node: whether a unit, by its name, has a node of its own.
        may_cut: where it may be cut.

    Raises:
        CannotCut: it returns what no row of the samples is, or has one node alone.
    """
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    (end,) = (node for node in graph.nodes if node.op == "output")
    outputs = tuple(end.all_input_nodes)
    repeated = repeatable(network, graph)
    for output in outputs:
        if not output.meta.get("rows", True):
            reason = f"it returns {list(output.meta['shape'])}, in which the first dimension is not that of the samples"
            raise CannotCut(
                reason, "return a row for each sample, [n, ...]; a number for all of them as value.expand(n)"
            )
        if output in repeated or output in inputs:
            raise CannotCut(
                "it returns a tensor that no operation of it makes of the samples",
                "leave it out, and let the loss make it",
            )
    operations = [node for node in graph.nodes if node.op in _OPERATIONS and node not in repeated]
    users = {node: _users(node, repeated) for node in [*inputs, *operations]}
    groups = _grouped(_finest(users, operations, has_node, may_cut), has_node)
    if len(groups) <= 1:
        raise CannotCut(
            "no two modules with weights to be cut between", "list modules inside, or make it one node: pg.head(MyNet)"
        )
    return _linked(groups, _names(groups, has_node), inputs, (end, outputs), users)


def repeatable(network: nn.Module, graph: fx.Graph) -> frozenset[fx.Node]:
    """Return the values that follow from sizes, constants and buffers alone."""
    buffers = dict(network.named_buffers(remove_duplicate=False))
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "get_attr":
            alone = str(node.target) in buffers
        elif node.op == "call_module":
            unit = network.get_submodule(str(node.target))
            alone = not node.meta.get("random") and not list(unit.parameters())
        else:
            alone = node.op in _OPERATIONS and not node.meta.get("random") and not node.meta.get("changes")
        if alone and all(one in found for one in node.all_input_nodes):
            found.add(node)
    return frozenset(found)


def _users(node: fx.Node, repeated: frozenset[fx.Node]) -> set[fx.Node]:
    return {user for user in node.users if user not in repeated}


def _finest(
    users: Mapping[fx.Node, set[fx.Node]],
    operations: Sequence[fx.Node],
    has_node: Callable[[str], bool],
    may_cut: MayCut,
) -> list[list[fx.Node]]:
    """Split operations between each two units with nodes, wherever the fewest numbers are handed on there."""
    heavy = [index for index, node in enumerate(operations) if _is_node(node, has_node)]
    later = {node: index for index, node in enumerate(operations)}
    last = {
        node: max((later.get(user, len(operations)) for user in found), default=-1) for node, found in users.items()
    }
    order = list(users)  # the inputs, and the operations
    inputs = len(order) - len(operations)

    def crossing(count: int) -> tuple[int, int] | None:
        """Return how many values without a row for each sample, and how many numbers, are handed on after `count` operations."""
        values = [node for node in order[: inputs + count] if last[node] >= count]
        uncut = ("several", "complex")  # a tuple is handed on by what it holds; streams are real
        if any(node.meta.get(one) for node in values for one in uncut) or not may_cut(operations[count - 1], values):
            return None
        return sum(not node.meta.get("rows", True) for node in values), sum(map(_numbers, values))

    ends = [(0, heavy[0]), (heavy[-1], len(operations) - 1)] if heavy else []
    cuts: list[int] = []
    for before, after in [*pairwise(heavy), *ends]:
        found = {count: values for count in range(before + 1, after + 1) if (values := crossing(count)) is not None}
        cuts += [count for count, values in found.items() if values == min(found.values())]
    bounds = sorted({0, *cuts, len(operations)})
    return [list(operations[start:end]) for start, end in pairwise(bounds)]


def _grouped(parts: Sequence[list[fx.Node]], has_node: Callable[[str], bool]) -> list[list[fx.Node]]:
    """Join parts without a node to one with a node."""
    groups: list[list[fx.Node]] = []
    waiting: list[fx.Node] = []
    for part in parts:
        container = part[0].meta["container"]
        if any(_is_node(node, has_node) for node in part):
            groups.append([*waiting, *part])
            waiting = []
        elif groups and not waiting and (len(groups) == 1 or groups[-1][-1].meta["container"] == container):
            groups[-1] += part
        else:
            waiting += part
    if groups:
        groups[-1] += waiting
    return groups


def _numbers(value: fx.Node) -> int:
    """Return how many numbers a value has; 1 for all where shapes are unknown."""
    return prod(value.meta.get("shape", ()))


def _is_node(node: fx.Node, has_node: Callable[[str], bool]) -> bool:
    return node.op == "call_module" and has_node(str(node.target))


def _names(groups: Sequence[Sequence[fx.Node]], has_node: Callable[[str], bool]) -> list[str]:
    """Return the module that each group is about: its one with weights, or the container of several."""
    names: list[str] = []
    for group in groups:
        own = [str(node.target) for node in group if _is_node(node, has_node)]
        levels = zip(*[name.split(".") for name in own], strict=False)
        common = ".".join(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels))
        name = common if common and common not in names else own[0]
        again = sum(one == name or one.startswith(f"{name}-") for one in names)
        names.append(f"{name}-{again + 1}" if again else name)
    return names


def _linked(
    groups: Sequence[Sequence[fx.Node]],
    names: Sequence[str],
    inputs: Sequence[fx.Node],
    last: tuple[fx.Node, tuple[fx.Node, ...]],
    users: Mapping[fx.Node, set[fx.Node]],
) -> tuple[Part, ...]:
    """Return groups as parts, with the values that they read and return; `last` is the graph's end, and what it returns.

    The first one reads the samples, and hands on those that later parts read.
    """
    end, outputs = last
    number = {node: index for index, group in enumerate(groups) for node in group} | {end: len(groups) - 1}
    returns: list[set[fx.Node]] = [set() for _ in groups]
    sources: list[set[int]] = [set() for _ in groups]
    for value, found in users.items():
        maker = number.get(value, 0)
        readers = sorted({number[user] for user in found if user in number} - {maker})
        for reader in readers:
            source = reader - 1 if reader - 1 in (maker, *readers) else maker
            returns[source].add(value)
            sources[reader].add(source)
    place = {node: index for index, node in enumerate(users)}
    ordered = [*(tuple(sorted(values, key=place.__getitem__)) for values in returns[:-1]), outputs]
    return tuple(
        Part(
            name=name,
            operations=tuple(group),
            sources=tuple(sorted(sources[index])),
            reads=tuple(value for source in sorted(sources[index]) for value in ordered[source])
            if index
            else tuple(inputs),
            returns=ordered[index],
        )
        for index, (name, group) in enumerate(zip(names, groups, strict=True))
    )
