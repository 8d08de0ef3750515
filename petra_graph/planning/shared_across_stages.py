"""Parameters that nodes of several stages share: refused, or untied by `partition.untie`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from petra_graph.errors import Problem, SpecError
from petra_graph.measure.node_shapes import NodeShapes
from petra_graph.units import noun


def check_shared(shapes: Mapping[str, NodeShapes], stages: Sequence[Sequence[str]], *, untie: bool) -> None:
    """Check that nodes which share a parameter are in one stage.

    Raises:
        SpecError: they are in several, and `untie` is not set.
    """
    found = [] if untie else list(across_stages(shapes, stages))
    if found:
        hint = (
            "put them into one stage, as partition.stages = 1 does; or set partition.untie = true: each stage then updates a copy of its "
            "own, equal at the start, which is another model than the tied one"
        )
        raise SpecError(Problem(message=text, hint=hint, path=("partition", "stages")) for text in found)


def across_stages(shapes: Mapping[str, NodeShapes], stages: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a sentence for each parameter that nodes of several stages share."""
    places: dict[str, dict[int, str]] = {}
    for number, names in enumerate(stages, start=1):
        for name in names:
            for label in shapes[name].shared.values():
                places.setdefault(label, {}).setdefault(number, name)
    for label, nodes in places.items():
        if len(nodes) > 1:
            named = " and ".join(f'"{name}"' for name in nodes.values())
            numbers = " and ".join(map(str, nodes))
            yield f"nodes {named} share the parameter {label}, and are in {noun(len(nodes), 'stage')} {numbers}"
