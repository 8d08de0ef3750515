"""Modules and networks of anyone as nodes: options and declarations, and the nodes of a network; torch is imported when they are asked for.

build = "my_net:Net"       a network whose parts are its nodes
stem -> a -> b -> c -> head         streams  1  1  1  1         all buffered
stem -> a -> b -> c -> head                  1  2  2  2         a, b, c coupled: each hands on two states, and others read the first
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from attrs import frozen

from petra_graph.errors import Problem, SpecError
from petra_graph.plugins import (
    ArchitectureDeclaration,
    AtLeast,
    BlockDeclaration,
    CallbackDeclaration,
    DataFacts,
    GreaterThan,
    Kind,
    NodeSpec,
    declares,
    option,
)

Coupling = Literal["dual-residual", "midpoint"]


@frozen(kw_only=True)
class ModuleOptions:
    """What makes the module: a class or a function, as code."""

    module: str = option(
        'class or function that makes the module, as "torch.nn:Conv2d" or "my_file:make_layer"', is_code=True
    )
    kwargs: Mapping[str, Any] = option("arguments that it is called with, by name", default={})


@frozen(kw_only=True)
class CouplingOptions:
    """How residual parts that follow one another are made reversible: the options of any architecture that calls `network_nodes`."""

    coupling: Coupling | None = option(
        'makes chains of the residual parts reversible: "dual-residual" (Dr2Net) or "midpoint"; default: the network itself',
        default=None,
    )
    anchors: int | None = option(
        "every n-th part of a chain is buffered, where reconstruction begins anew; default: none",
        default=None,
        unit="nodes",
        validator=AtLeast(1),
    )
    alpha: float = option("of dual residual parts: coefficient of their own connection at the start", default=1.0)
    beta: float = option(
        "of dual residual parts: coefficient of the part before at the start", default=0.1, validator=GreaterThan(0)
    )


@frozen(kw_only=True)
class NetworkOptions(CouplingOptions):
    """What makes the network."""

    build: str = option('class or function that makes the network, as in "my_file:make_model"', is_code=True)
    kwargs: Mapping[str, Any] = option("arguments that it is called with, by name", default={})
    split: tuple[str, ...] = option(
        'nn.Sequential modules within an nn.Sequential whose children are nodes, too: ["layers"]', default=()
    )


@frozen(kw_only=True)
class PartOptions:
    """A part of a network. Architectures write these options."""

    build: str = option("class or function that makes the network", is_code=True)
    kwargs: Mapping[str, Any] = option("arguments that it is called with, by name", default={})
    split: tuple[str, ...] = option("as of the architecture", default=())
    part: str = option("name of the part")
    reads: tuple[int, ...] = option("places of the node's streams that the part reads; default: all", default=())
    names: tuple[str, ...] = option("names of a sample's inputs, in the order of the data", default=())
    by_name: bool = option(
        "whether the part is given all of them, by name where its forward has such names", default=False
    )
    hands_on: tuple[int, ...] = option(
        "places of the node's streams that it returns after its own, for later parts", default=()
    )

    drawn_as = "network"
    """All parts draw the random numbers of one constructor, so they are seeded alike."""


@frozen(kw_only=True)
class CoupledPartOptions(PartOptions):
    """A residual part of a network, made reversible; Zhao et al. 2024, "Dr2Net", https://arxiv.org/abs/2401.04105, equation 1."""

    alpha: float = option("coefficient of the part's own residual connection at the start", default=1.0)
    beta: float = option(
        "coefficient of the reversible residual connection at the start", default=0.1, validator=GreaterThan(0)
    )


def module_nodes(options: NetworkOptions, facts: DataFacts) -> tuple[NodeSpec, ...]:
    """Return the nodes of the architecture "module"; errors as of `network_nodes`."""
    return network_nodes(
        facts, build=options.build, kwargs=options.kwargs, split=options.split, coupling=options, path=("build",)
    )


def network_nodes(
    facts: DataFacts,
    *,
    build: str,
    kwargs: Mapping[str, Any],
    split: Sequence[str] = (),
    coupling: CouplingOptions | None = None,
    path: tuple[str, ...] = (),
) -> tuple[NodeSpec, ...]:
    """Return the nodes of a network, a part each; an architecture of another package may call this.

    Args:
        facts: of the data set that the network reads.
        build: "module:attribute" of what makes the network.
        kwargs: what it is called with: numbers, texts, lists and tables.
        split: as of the architecture "module".
        coupling: whether, and how, residual parts are made reversible: those that the network's method `residual()` names.
        path: of the option that names the network, for problems.

    Raises:
        SpecError: nothing makes the network, or its parts are wrong.
    """
    from petra_graph.catalog.networks.parts import layout_of

    given: dict[str, Any] = {"build": build}
    if kwargs:
        given["kwargs"] = dict(kwargs)
    if split:
        given["split"] = tuple(split)
    layout = layout_of(PartOptions(**given, part=""))
    inputs = tuple(facts.inputs) if facts.several_inputs else ()
    reads = _reads(layout.reads, inputs, build, path)
    order = list(reads)
    # One node reads the samples: it hands on the inputs that later parts read.
    handed_on = [name for name in inputs if any(name in reads[part] for part in order[1:])]
    residual = [name for name in layout.residual if name != order[-1] and not (handed_on and order[0] in reads[name])]
    chained = _chained(reads, residual, coupling)
    streams: dict[str, tuple[str, ...]] = {
        name: (name, "the state before it") if name in chained else (name,) for name in order
    }
    streams[order[0]] += tuple(handed_on)
    made = []
    for at, (name, own) in enumerate(reads.items()):
        options = {**given, "part": name}
        block, kind = "module-part" if at < len(order) - 1 else "module-part-head", None
        producers = list(dict.fromkeys(order[0] if one in inputs else one for one in own)) if at else []
        there = [one for producer in producers for one in streams[producer]] if at else list(inputs)
        if name in chained:
            assert coupling is not None
            block = f"{coupling.coupling}-{'step' if chained[name] else 'entry'}"
            kind = _kind(coupling, chained[name])
            if coupling.coupling == "dual-residual":
                options |= {"alpha": coupling.alpha, "beta": coupling.beta}
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


def _kind(coupling: CouplingOptions, place: int) -> Kind:
    return "buffered" if coupling.anchors is not None and (place + 1) % coupling.anchors == 0 else "reversible"


def _chained(
    reads: Mapping[str, Sequence[str]], residual: Sequence[str], coupling: CouplingOptions | None
) -> dict[str, int]:
    """Return the residual parts that follow one another, each with its place in its chain; without coupling, none.

    One that stands alone stays buffered: as a reversible node it would hand on two streams in place of one, and spare none.
    """
    if coupling is None or coupling.coupling is None:
        return {}
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


def _block(kind: Kind, streams: int | None, code: str, options: type, summary: str) -> BlockDeclaration:
    build = f"petra_graph.catalog.networks.{code}"
    return BlockDeclaration(kind=kind, streams=streams, build=build, options=options, summary=summary)


MODULE = _block(
    "buffered",
    None,
    "module_blocks:Module",
    ModuleOptions,
    "Any torch.nn.Module of streams: tensors in, one or several out.",
)
MODULE_HEAD = _block(
    "head",
    None,
    "module_blocks:ModuleHead",
    ModuleOptions,
    "Any torch.nn.Module as the head: tensors in, the output out.",
)
PART = _block("buffered", None, "part_blocks:Part", PartOptions, "A part of a network.")
PART_HEAD = _block("head", None, "part_blocks:PartHead", PartOptions, "The last part of a network.")
_entry, _step = partial(_block, "reversible", 1), partial(_block, "reversible", 2)
DUAL_RESIDUAL_ENTRY = _entry(
    "part_blocks:DualResidualEntryPart", CoupledPartOptions, "The first residual part of a chain: one stream to two."
)
DUAL_RESIDUAL_STEP = _step(
    "part_blocks:DualResidualStepPart", CoupledPartOptions, "A residual part made reversible, as in Dr2Net."
)
MIDPOINT_ENTRY = _entry(
    "part_blocks:MidpointEntryPart", PartOptions, "The first residual part of a chain: one stream to two."
)
MIDPOINT_STEP = _step("part_blocks:MidpointStepPart", PartOptions, "A residual part as a step of the midpoint method.")
NETWORK = ArchitectureDeclaration(
    summary="Any torch.nn.Module, by its parts: the children of an nn.Sequential, or what its method nodes() returns.",
    options=NetworkOptions,
    build=f"{__name__}:module_nodes",
    several_inputs=True,
)


@declares(
    CallbackDeclaration, "petra_graph.catalog.networks.dual_residual_schedule:DualResidualSchedule", changes="weights"
)
class DualResidualScheduleOptions:
    """Moves alpha and beta of dual residual nodes linearly, from their first values to others."""

    alpha: float = option("value of alpha at the end", default=0.3)
    beta: float = option("value of beta at the end", default=0.7, validator=GreaterThan(0))
    updates: int = option(
        "updates of a stage over which they move; they stay afterwards", default=1000, validator=AtLeast(1)
    )
