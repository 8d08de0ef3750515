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
    """Any torch.nn.Module, by its parts: the children of an nn.Sequential, or what its method nodes() returns."""
    coupled: dict[str, Any] = {"coupling": coupling, "anchors": anchors, "alpha": alpha, "beta": beta}
    return network_nodes(facts, build=build, kwargs=kwargs, split=split, path=("build",), **coupled)


module_nodes.several_inputs = True  # type: ignore[attr-defined]


def network_nodes(
    facts: DataFacts,
    *,
    build: str,
    kwargs: Mapping[str, Any],
    split: Sequence[str] = (),
    coupling: Literal["dual-residual", "midpoint"] | None = None,
    anchors: int | None = None,
    alpha: float = 1.0,
    beta: float = 0.1,
    path: tuple[str, ...] = (),
) -> tuple[NodeSpec, ...]:
    """Return the nodes of a network, a part each; an architecture of another package may call this.

    Args:
        facts: of the data set that the network reads.
        build: "module:attribute" of what makes the network.
        kwargs: what it is called with: numbers, texts, lists and tables.
        split: as of the architecture "module".
        coupling: whether, and how, residual parts are made reversible: those that the network's method `residual()` names.
        anchors: every n-th part of a chain is buffered.
        alpha: the first coefficient of a dual residual part at the start.
        beta: the second.
        path: of the option that names the network, for problems.

    Raises:
        SpecError: nothing makes the network, or its parts are wrong.
    """
    from petra_graph.catalog.networks.parts import layout_of

    given: dict[str, Any] = {"build": str(build)}
    if kwargs:
        given["kwargs"] = dict(kwargs)
    if split:
        given["split"] = tuple(split)
    layout = layout_of(build, kwargs, split)
    inputs = tuple(facts.inputs) if facts.several_inputs else ()
    reads = _reads(layout.reads, inputs, build, path)
    order = list(reads)
    # One node reads the samples: it hands on the inputs that later parts read.
    handed_on = [name for name in inputs if any(name in reads[part] for part in order[1:])]
    residual = [name for name in layout.residual if name != order[-1] and not (handed_on and order[0] in reads[name])]
    chained = {} if coupling is None else _chained(reads, residual)
    streams: dict[str, tuple[str, ...]] = {
        name: (name, "the state before it") if name in chained else (name,) for name in order
    }
    streams[order[0]] += tuple(handed_on)
    made = []
    for at, (name, own) in enumerate(reads.items()):
        options = {**given, "part": name}
        block: str = "module-part" if at < len(order) - 1 else "module-part-head"
        kind: Kind | None = None
        producers = list(dict.fromkeys(order[0] if one in inputs else one for one in own)) if at else []
        there = [one for producer in producers for one in streams[producer]] if at else list(inputs)
        if name in chained:
            block = f"{coupling}-{'step' if chained[name] else 'entry'}"
            anchor = anchors is not None and (chained[name] + 1) % anchors == 0
            kind = "buffered" if anchor else "reversible"
            if coupling == "dual-residual":
                options |= {"alpha": alpha, "beta": beta}
        elif list(own) != there and there:
            options["reads"] = tuple(there.index(one) for one in own)
        if inputs:
            options["names"] = inputs
        if at == 0 and inputs:
            options |= {"by_name": own == inputs, "hands_on": tuple(inputs.index(one) for one in handed_on)}
        follows = at == 0 or producers == order[at - 1 : at]
        made.append(
            NodeSpec(name=name, block=block, kind=kind, inputs=None if follows else tuple(producers), options=options)
        )
    return tuple(made)


def _reads(
    declared: Mapping[str, tuple[str, ...]], inputs: tuple[str, ...], build: str, path: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """Return what each part reads: what it names, or the part before it; the first reads the sample, whose inputs may have names."""
    order = list(declared)
    reads = {name: declared[name] or tuple(order[at - 1 : at] or inputs) for at, name in enumerate(order)}
    for at, name in enumerate(order):
        before = [*inputs, *order[:at]]
        if unknown := [one for one in reads[name] if one not in before]:
            there = ", ".join(before) or "none"
            message = f"the part {name!r} of {build} reads {unknown[0]!r}; in front of it are {there}"
            raise SpecError(Problem(message=message, hint="name parts, and inputs of a sample, as they are", path=path))
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
