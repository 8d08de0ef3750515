"""Parameters that several nodes share: which nodes are in one stage for them, what is counted once, and what is refused.

A stage updates its parameters at its own times. So nodes that share a trained parameter are in one stage, with all nodes between them, or
`partition.untie` gives each stage a copy. Frozen parameters are never updated, so stages may have copies of them.

Decision: embedding and head of a chain are in one stage in a cut into one stage alone. A stage has one depth, and one forward for each
micro-batch: with both ends of a longer pipeline it would wait for its own output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from petra_graph.errors import Problem, SpecError
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.measure.node_shapes import NodeShapes
from petra_graph.spec.run_tables import PartitionSpec
from petra_graph.units import noun

Shapes = Mapping[str, NodeShapes]


def _owners(names: Iterable[str], shapes: Shapes, *, trained: bool = False) -> Mapping[str, Sequence[str]]:
    """Return which of some nodes have each shared parameter, where several have; with `trained`, of those that one of them trains."""
    found: dict[str, list[str]] = {}
    moved: set[str] = set()
    for name in names:
        for one in shapes[name].shared.values():
            found.setdefault(one.label, []).append(name)
            moved |= {one.label} if one.trained else set()
    nodes = {label: [*dict.fromkeys(owners)] for label, owners in found.items()}
    return {label: own for label, own in nodes.items() if len(own) > 1 and (label in moved or not trained)}


def kept_together(graph: NodeGraph, shapes: Shapes, partition: PartitionSpec) -> tuple[tuple[str, ...], ...]:
    """Return the sets of nodes that every cut has in one stage."""
    return () if partition.untie else graph.inseparable(_owners(graph.order, shapes, trained=True).values())


def shared_in_stages(
    graph: NodeGraph, shapes: Shapes, partition: PartitionSpec, stages: Sequence[Sequence[str]] | None
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the shared parameters by their names, with nodes that have them and are known to be in one stage.

    Args:
        stages: those that are given; None: they are still to be cut.
    """
    bound = {} if partition.untie else _owners(graph.order, shapes, trained=True)
    yield from bound.items()
    for names in stages or ([graph.order] if partition.stages == 1 else []):
        inside = _owners((name for name in graph.order if name in names), shapes)
        yield from ((label, owners) for label, owners in inside.items() if label not in bound)


def count_parameters(shapes: Shapes, stages: Iterable[Sequence[str]]) -> tuple[int, int]:
    """Return how many values a network's parameters have, and how many of them are trained; a shared one counts once a stage."""
    every = trained = 0
    for names in stages:
        every += sum(shapes[name].parameters for name in names)
        trained += sum(sum(shapes[name].trained.values()) for name in names)
        for label, owners in _owners(names, shapes).items():
            own = [one for name in owners for one in shapes[name].shared.values() if one.label == label]
            every -= sum(one.values for one in own[1:])
            trained -= sum([one.values for one in own if one.trained][1:])
    return every, trained


def check_number(graph: NodeGraph, shapes: Shapes, stages: int, together: Sequence[Sequence[str]]) -> None:
    """Check that a network can be cut into a number of stages.

    Raises:
        SpecError: nodes that share a parameter would be in several.
    """
    if stages > graph.most_stages(together):
        owners = _owners(graph.order, shapes, trained=True)
        found = (
            f"{stages} stages are too many: {_named(names)} share the parameter {label}"
            for label, names in owners.items()
        )
        raise _refused(found, graph.most_stages(together))


def check_shared(graph: NodeGraph, shapes: Shapes, stages: Sequence[Sequence[str]], partition: PartitionSpec) -> None:
    """Check that nodes which share a parameter are in one stage.

    Raises:
        SpecError: they are in several, and `partition.untie` is not set.
    """
    if not partition.untie and (found := list(across_stages(shapes, stages))):
        raise _refused(found, graph.most_stages(kept_together(graph, shapes, partition)))


def _refused(found: Iterable[str], most: int) -> SpecError:
    hint = (
        f"set partition.stages = {most}, the most that there can be: a stage with these nodes has all nodes between them, too; or set "
        "partition.untie = true: each stage then updates a copy of its own, equal at the start, which is another model than the tied one"
    )
    return SpecError(Problem(message=text, hint=hint, path=("partition", "stages")) for text in found)


def across_stages(shapes: Shapes, stages: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a sentence for each parameter that nodes of several stages share and one of them trains."""
    stage_of = {name: number for number, names in enumerate(stages, start=1) for name in names}
    for label, owners in _owners(stage_of, shapes, trained=True).items():
        first: dict[int, str] = {}
        for name in owners:
            first.setdefault(stage_of[name], name)
        if len(first) > 1:
            numbers = " and ".join(map(str, first))
            yield f"{_named(first.values())} share the parameter {label}, and are in {noun(len(first), 'stage')} {numbers}"


def _named(names: Iterable[str]) -> str:
    return "nodes " + " and ".join(f'"{name}"' for name in names)
