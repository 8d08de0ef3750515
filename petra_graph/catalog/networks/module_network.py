"""Networks of anyone as nodes, a part each; torch is imported when they are asked for.

build = "my_net:Net"       a network whose parts are its nodes
stem -> a -> b -> c -> head         streams  1  1  1  1         all buffered
stem -> a -> b -> c -> head                  1  2  2  2         a, b, c coupled: each hands on two states, and others read the first
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from petra_graph.errors import Problem, SpecError
from petra_graph.plugins import AtLeast, Code, DataFacts, GreaterThan, Kind, NodeSpec

Coupling = Annotated[
    Literal["dual-residual", "midpoint"] | None,
    'makes chains of the residual parts reversible: "dual-residual" (Dr2Net) or "midpoint"; default: the network itself',
]
Anchors = Annotated[
    int | None,
    "every n-th part of a chain is buffered, where reconstruction begins anew; default: none",
    AtLeast(1),
]
Alpha = Annotated[float, "of dual residual parts: coefficient of their own connection at the start"]
Beta = Annotated[float, "of dual residual parts: coefficient of the part before at the start", GreaterThan(0)]


def module_nodes(
    facts: DataFacts,
    *,
    build: Annotated[Code, 'class or function that makes the network, as in "my_file:make_model"'],
    kwargs: Annotated[Mapping[str, Any], "arguments that it is called with, by name"] = {},
    split: Annotated[
        tuple[str, ...], 'nn.Sequential modules within an nn.Sequential whose children are nodes, too: ["layers"]'
    ] = (),
    coupling: Coupling = None,
    anchors: Anchors = None,
    alpha: Alpha = 1.0,
    beta: Beta = 0.1,
) -> tuple[NodeSpec, ...]:
    """Any torch.nn.Module, by its parts: the children of an nn.Sequential, or what its method nodes() returns.

    An architecture of another package may call this. Residual parts are those that the network's method `residual()` names.

    Raises:
        SpecError: nothing makes the network, or its parts are wrong.
    """
    from petra_graph.catalog.networks.parts import layout_of

    layout = layout_of(build, kwargs, split)
    inputs = tuple(facts.inputs) if facts.several_inputs else ()
    reads = _reads(layout.reads, inputs, build)
    order = list(reads)
    first, last = order[0], order[-1]
    # One node reads the samples: it hands on the inputs that later parts read.
    handed_on = [one for one in inputs if any(one in reads[name] for name in reads if name != first)]
    residual = [name for name in layout.residual if name != last and not (handed_on and first in reads[name])]
    chained = {} if coupling is None else _chained(reads, residual)
    streams: dict[str, tuple[str, ...]]
    streams = {name: (name, "the state before it") if name in chained else (name,) for name in reads}
    streams[first] += tuple(handed_on)
    shared: dict[str, Any] = {"build": str(build)}
    shared |= {"kwargs": dict(kwargs)} if kwargs else {}
    shared |= {"split": tuple(split)} if split else {}
    shared |= {"names": inputs} if inputs else {}
    made: list[NodeSpec] = []
    for name, own in reads.items():
        block: str = "module-part-head" if name == last else "module-part"
        kind: Kind | None = None
        options: dict[str, Any] = {"part": name}
        producers = list(dict.fromkeys(first if one in inputs else one for one in own)) if made else []
        there = [one for producer in producers for one in streams[producer]] if made else list(inputs)
        if coupling is not None and name in chained:
            block, kind, coefficients = link_of_chain(coupling, chained[name], anchors, alpha, beta)
            options |= coefficients
        elif list(own) != there and there:
            options["reads"] = tuple(there.index(one) for one in own)
        if inputs and not made:
            options |= {"by_name": own == inputs, "hands_on": tuple(inputs.index(one) for one in handed_on)}
        follows = not made or producers == [made[-1].name]
        reading = None if follows else tuple(producers)
        made.append(NodeSpec(name=name, block=block, kind=kind, inputs=reading, options=shared | options))
    return tuple(made)


module_nodes.several_inputs = True  # type: ignore[attr-defined]


def link_of_chain(
    coupling: str, place: int, anchors: int | None, alpha: float, beta: float
) -> tuple[str, Kind, dict[str, float]]:
    """Return the block, the kind and the coefficients of a layer at a place of a reversible chain."""
    kind: Kind = "buffered" if anchors is not None and (place + 1) % anchors == 0 else "reversible"
    coefficients = {"alpha": alpha} | ({"beta": beta} if place else {}) if coupling == "dual-residual" else {}
    return f"{coupling}-{'step' if place else 'entry'}", kind, coefficients


def _reads(declared: Mapping[str, tuple[str, ...]], inputs: tuple[str, ...], build: str) -> dict[str, tuple[str, ...]]:
    """Return what each part reads: what it names, or the part before it; the first reads the sample, whose inputs may have names."""
    reads: dict[str, tuple[str, ...]] = {}
    for name, own in declared.items():
        before = list(reads)
        reads[name] = own or tuple(before[-1:] or inputs)
        if unknown := [one for one in reads[name] if one not in (*inputs, *before)]:
            there = ", ".join((*inputs, *before)) or "none"
            message = f"the part {name!r} of {build} reads {unknown[0]!r}; in front of it are {there}"
            raise SpecError(
                Problem(message=message, hint="name parts, and inputs of a sample, as they are", path=("build",))
            )
    return reads


def _chained(reads: Mapping[str, Sequence[str]], residual: Sequence[str]) -> dict[str, int]:
    """Return the residual parts that follow one another, each with its place in its chain.

    One that stands alone stays buffered: as a reversible node it would hand on two streams in place of one, and spare none.
    """
    places: dict[str, int] = {}
    for name, own in reads.items():
        if name in residual and len(own) == 1 and own[0] in reads:
            places[name] = places.get(own[0], -1) + 1
    followed = {own[0] for name, own in reads.items() if places.get(name)}
    if not followed:
        message = "the network has no two residual parts that follow one another and keep their shape"
        hint = "leave out coupling, or give the network a method residual() that names them"
        raise SpecError(Problem(message=message, hint=hint, path=("coupling",)))
    return {name: place for name, place in places.items() if place or name in followed}
