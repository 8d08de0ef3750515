"""The network as a graph: of nodes, or of the stages that they form.

A node is a block instance; an edge carries the tuple of streams that its producer returns. Stages are laid over it:

    nodes    stem -> a -> b -> head,  stem -> c -> head      stages   {stem} {a, b} {c} {head}
    stages   1 -> 2 -> 4,  1 -> 3 -> 4                       distances to the head's stage   2, 1, 1, 0

Stages are numbered from 1 to J, as in the paper.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import networkx as nx
from attrs import define, frozen

from petra_graph.errors import Path, Problem, suggestion
from petra_graph.plugins.contract import Plugin
from petra_graph.spec.model import Kind, NodeSpec

INPUT = "input"
"""The name under which nodes read the samples."""


@frozen(kw_only=True)
class Node:
    """One block instance, resolved as far as no tensor is needed."""

    name: str
    block: str
    plugin: Plugin | None
    """None until the block's module has been imported (`block = "module:attribute"`)."""
    kind: Kind
    inputs: tuple[str, ...]
    """Producers in declared order; INPUT is the samples."""
    path: Path = ()
    frozen: tuple[str, ...] = ()
    """Patterns of the parameters that are not trained, of all nodes: `init.freeze`."""

    @property
    def options(self) -> Any:
        """An instance of the block's own options class."""
        return None if self.plugin is None else self.plugin.options

    def problem(self, message: str, hint: str, *key: str) -> Problem:
        """Return a problem of the node, or of a key of its table."""
        return Problem(message=message, hint=hint, path=(*self.path, *key))


@define(kw_only=True, eq=False)
class NodeGraph:
    """A directed acyclic graph of nodes that keeps every rule of `build_graph`."""

    nodes: Mapping[str, Node]

    @cached_property
    def digraph(self) -> nx.DiGraph:
        """The graph in networkx: node names and edges, both in declared order."""
        graph = nx.DiGraph()
        graph.add_nodes_from(self.nodes)
        graph.add_edges_from(
            (producer, node.name) for node in self.nodes.values() for producer in node.inputs if producer != INPUT
        )
        return graph

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Names in topological order; among nodes that are free, in declared order."""
        declared = {name: index for index, name in enumerate(self.nodes)}
        return tuple(nx.lexicographical_topological_sort(self.digraph, key=declared.__getitem__))

    def consumers(self, name: str) -> tuple[str, ...]:
        """Return the nodes that read a node, in declared order."""
        return tuple(self.digraph.successors(name))

    @property
    def head(self) -> str:
        """The node that computes the loss, which every other node reaches."""
        return self.order[-1]

    def inseparable(self, groups: Iterable[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
        """Return the sets of several nodes that are in one stage wherever each group is: also every node on a path between two of them."""
        bound = nx.DiGraph(self.digraph.edges)
        for group in groups:
            nx.add_cycle(bound, group)
        position = {name: place for place, name in enumerate(self.order)}
        sets = (tuple(sorted(one, key=position.__getitem__)) for one in nx.strongly_connected_components(bound))
        return tuple(sorted((one for one in sets if len(one) > 1), key=lambda one: position[one[0]]))

    def most_stages(self, together: Iterable[Sequence[str]]) -> int:
        """Return how many stages there can be, where each of some sets of nodes is in one."""
        return len(self.order) - sum(len(names) - 1 for names in together)


def stage_graph(nodes: nx.DiGraph, stages: Sequence[Collection[Hashable]]) -> nx.DiGraph:
    """Return the quotient of `nodes` by `stages`, which hold each node once, numbered from 1; an edge has those of `nodes` as its `edges`."""
    # `networkx.quotient_graph` compares all pairs of stages: for 1,000 of them it takes seconds.
    stage_of = {name: stage for stage, names in enumerate(stages, start=1) for name in names}
    graph = nx.DiGraph()
    graph.add_nodes_from(range(1, len(stages) + 1))
    for producer, consumer in nodes.edges:
        source, reader = stage_of[producer], stage_of[consumer]
        if source != reader:
            graph.add_edge(source, reader)
            graph.edges[source, reader].setdefault("edges", []).append((producer, consumer))
    return graph


def distances(stages: nx.DiGraph) -> dict[int, int]:
    """Return for each stage the longest path to the head's stage, counted in stages (the paper's J - j)."""
    generations = nx.topological_generations(stages.reverse(copy=False))
    return {stage: distance for distance, generation in enumerate(generations) for stage in generation}


# --- from node tables to a checked graph: `repeat` unrolled, defaults filled in; `measure` checks the shapes of tensors -----


@frozen(kw_only=True)
class NodeInput:
    """A node's table with its resolved plugin."""

    spec: NodeSpec
    plugin: Plugin | None
    path: Path


def build_graph(tables: Sequence[NodeInput]) -> tuple[NodeGraph | None, list[Problem]]:
    """Return the graph of `tables`, None where the nodes' inputs allow none, and all problems found."""
    nodes = list(_unroll(tables))
    problems = [*_of_names(tables), *_of_nodes(nodes)]
    known = {INPUT, *(node.name for node in nodes)}
    if len(known) <= len(nodes) or not nodes or any(one not in known for node in nodes for one in node.inputs):
        return None, problems
    graph = NodeGraph(nodes={node.name: node for node in nodes})
    return graph, [*problems, *_of_shape(graph)]


def _copies(spec: NodeSpec) -> list[str]:
    return [spec.name] if spec.repeat == 1 else [f"{spec.name}.{index}" for index in range(spec.repeat)]


def _unroll(tables: Sequence[NodeInput]) -> Iterator[Node]:
    """Yield nodes in declared order; in another node's inputs a repeated node's name means its last copy."""
    last_copy = {table.spec.name: _copies(table.spec)[-1] for table in tables}
    before = INPUT
    for table in tables:
        spec = table.spec
        kind = spec.kind or (table.plugin.code.kind if table.plugin else "buffered")
        inputs = (before,) if spec.inputs is None else tuple(last_copy.get(name, name) for name in spec.inputs)
        for name in _copies(spec):
            yield Node(name=name, block=spec.block, plugin=table.plugin, kind=kind, inputs=inputs, path=table.path)
            before, inputs = name, (name,)


def _of_names(tables: Sequence[NodeInput]) -> Iterator[Problem]:
    """No two nodes share a name, and none takes the input's; that of a repeated node is taken too, since reading it means the last copy."""
    taken: dict[str, list[Path]] = {INPUT: [()]}
    for one in tables:
        for name in dict.fromkeys((one.spec.name, *_copies(one.spec))):
            taken.setdefault(name, []).append((*one.path, "name"))
    wrong = {paths[-1]: name for name, paths in reversed(taken.items()) if len(paths) > 1}
    for path, name in wrong.items():  # the copies of a repeated node are one mistake
        message, hint = f'{len(taken[name])} nodes are called "{name}"', "`repeat = n` makes NAME.0 to NAME.(n-1)"
        if name == INPUT:
            message, hint = f'a node cannot be called "{INPUT}", which means the samples', ""
        yield Problem(message=message, hint=hint, path=path)


def _of_nodes(nodes: Sequence[Node]) -> Iterator[Problem]:
    """Every input names a node, once; a reversible node needs a block with an inverse, a head node a head block; a reversible block may be buffered."""
    known = dict.fromkeys([INPUT, *(node.name for node in nodes)])
    for node in nodes:
        for producer, count in Counter(node.inputs).items():
            reads = f'node "{node.name}" reads "{producer}"'
            if count > 1:
                yield node.problem(f"{reads} {count} times", "a block can use a stream as often as it likes", "inputs")
            if producer not in known:
                yield node.problem(f"{reads}, which is not a node", suggestion(producer, known), "inputs")
        declared = node.kind if node.plugin is None else node.plugin.code.kind
        if node.kind != declared and (node.kind, declared) != ("buffered", "reversible"):
            message = f'node "{node.name}" has kind "{node.kind}" but its block "{node.block}" is a {declared} block'
            yield node.problem(message, f'leave out `kind`, or set kind = "{declared}"', "kind")


def _of_shape(graph: NodeGraph) -> Iterator[Problem]:
    """No node depends on its own output; one node reads the samples, and one is a head, which every other reaches and none reads."""
    nodes, cyclic = graph.nodes, not nx.is_directed_acyclic_graph(graph.digraph)
    sources, heads = (
        [one for one in nodes.values() if INPUT in one.inputs],
        [one for one in nodes.values() if one.kind == "head"],
    )
    wrong = list[tuple[str, str]]()
    if cyclic:
        names = [edge[0] for edge in nx.find_cycle(graph.digraph)]
        wrong.append((names[0], f"the graph has a cycle: {' -> '.join([*names, names[0]])}"))
    if not sources:
        wrong.append((next(iter(nodes)), f'no node reads the samples: one has inputs = ["{INPUT}"]'))
    for node in sources[1:]:
        wrong.append(
            (node.name, f'node "{node.name}" reads the samples, as "{sources[0].name}" does; let it read that node')
        )
    for node in heads[1:]:
        wrong.append((node.name, f'node "{node.name}" is a second head; the first is "{heads[0].name}"'))
    for node, reader in ((one, reader) for one in heads for reader in graph.consumers(one.name)):
        wrong.append((reader, f'node "{reader}" reads the head "{node.name}", whose output goes to the loss'))
    if len(heads) == 1 and not wrong:
        reaching = nx.ancestors(graph.digraph, heads[0].name) | {heads[0].name}
        lost = (name for name in nodes if name not in reaching)
        wrong += ((name, f'the output of node "{name}" never reaches the head "{heads[0].name}"') for name in lost)
    yield from (nodes[name].problem(message, "", "inputs") for name, message in wrong)
    if not heads:
        hint = 'end with a head block, such as block = "pool-linear", or with any module and kind = "head"'
        yield [*nodes.values()][-1].problem("the graph has no head node, which is where the loss is", hint)
