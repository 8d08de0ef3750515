"""The patterns of `[finetune]` as names in each node: which parameters are trained, and which layers have adapters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve

from petra_graph.errors import Problem, SpecError, likely_meant
from petra_graph.graph.node_graph import NodeGraph, Tuning
from petra_graph.measure.node_shapes import NodeShapes
from petra_graph.record.weights import SEPARATOR, is_named
from petra_graph.spec.model import FinetuneSpec
from petra_graph.units import listed

_LISTED = 8


def tuned(graph: NodeGraph, shapes: Mapping[str, NodeShapes], finetune: FinetuneSpec) -> NodeGraph:
    """Return the graph with what each node trains.

    Raises:
        SpecError: a pattern names nothing, or nothing would be trained; all problems.
    """
    parameters = {name: [f"{name}{SEPARATOR}{key}" for key in node.trained] for name, node in shapes.items()}
    layers = {name: [f"{name}{SEPARATOR}{key}" for key in node.adaptable] for name, node in shapes.items()}
    trained, frozen, lora = finetune.trained, finetune.frozen, finetune.lora
    problems = [
        *_unmatched(trained, parameters, "trained"),
        *_unmatched(frozen, parameters, "frozen"),
        *(_unmatched(lora.on, layers, "lora", "on") if lora else ()),
    ]

    def keys(of_node: Sequence[str], patterns: Sequence[str], but: Sequence[str] = ()) -> tuple[str, ...]:
        own = (one for one in of_node if is_named(patterns, one) and not is_named(but, one))
        return tuple(one.partition(SEPARATOR)[2] for one in own)

    def shared(name: str, layer: str) -> tuple[str, str] | None:
        """Return what a layer is called that several nodes have."""
        weight = shapes[name].shared.get(f"{layer}.weight")
        return None if weight is None else (weight.label, layer)

    named = {(name, layer) for name in shapes for layer in (keys(layers[name], lora.on) if lora else ())}
    in_several = {shared(*one) for one in named} - {None}
    tunings = {
        name: Tuning(
            trained=keys(parameters[name], trained, frozen),
            adapted=tuple(
                one for one in shapes[name].adaptable if (name, one) in named or shared(name, one) in in_several
            ),
            lora=lora,
        )
        for name in graph.nodes
    }
    if not problems and not any(one.trained or one.adapted for one in tunings.values()):
        hint = 'name what is trained, as in trained = ["head"], or give adapters: lora = { on = ["*q_proj"] }'
        problems.append(Problem(message="nothing of the network would be trained", hint=hint, path=("finetune",)))
    if problems:
        raise SpecError(problems)
    return NodeGraph(nodes={name: evolve(node, tuning=tunings[name]) for name, node in graph.nodes.items()})


def _unmatched(patterns: Sequence[str], names: Mapping[str, Sequence[str]], *key: str) -> Iterator[Problem]:
    """Yield the patterns that name nothing, each with the nearest names."""
    every = [one for of_node in names.values() for one in of_node]
    what = "linear layer that can have an adapter" if "on" in key else "trained parameter"
    forms = list(dict.fromkeys(form for one in every for form in (one, *one.split(SEPARATOR, 1))))
    for pattern in patterns:
        if not any(is_named([pattern], one) for one in every):
            near = likely_meant(pattern.strip("*./"), forms)
            meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
            hint = f"{meant}there are {listed(every, _LISTED)}" if every else "the network has none"
            message = f"{pattern!r} names no {what} of the network"
            yield Problem(message=message, hint=hint, path=("finetune", *key))
