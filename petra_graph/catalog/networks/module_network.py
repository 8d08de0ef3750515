"""Networks of anyone as nodes, a part each: buffered ones, the head, and steps of a reversible chain of residual parts.

build = "my_net:Net"       a network whose parts are its nodes
stem -> a -> b -> c -> head         streams  1  1  1  1         all buffered
stem -> a -> b -> c -> head                  1  2  2  2         a, b, c coupled: each hands on two states, and others read the first
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from torch import Tensor, nn

from petra_graph.blocks import Block, Buffered, DualResidualEntry, DualResidualStep, Shape, Streams
from petra_graph.blocks.dual_residual import Alpha, Beta
from petra_graph.blocks.module_block import StructuredHead, as_outputs
from petra_graph.blocks.randomness import may_draw
from petra_graph.catalog.blocks import NO_ARGUMENTS, Arguments
from petra_graph.catalog.networks.parts import Link, Maker, layout_of, network_of, reads_names, wrong
from petra_graph.errors import Problem, SpecError
from petra_graph.plugins import AtLeast, Code, DataFacts, Kind, NodeSpec

Coupling = Annotated[
    Literal["dual-residual"] | None,
    'makes chains of the residual parts reversible: "dual-residual" (Dr2Net); default: the network itself',
]
Anchors = Annotated[
    int | None, "every n-th part of a chain is buffered, where reconstruction begins anew; default: none", AtLeast(1)
]


def module_nodes(
    facts: DataFacts,
    *,
    build: Annotated[Code, 'class or function that makes the network, as in "my_file:make_model"'],
    kwargs: Arguments = NO_ARGUMENTS,
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
    layout = layout_of(Maker.of(build, kwargs))
    inputs = tuple(facts.inputs) if facts.several_inputs else ()
    reads = _reads(layout.reads, inputs, build)
    first, last = next(iter(reads)), next(reversed(reads))
    # One node reads the samples: it hands on the inputs that later parts read.
    handed_on = [one for one in inputs if any(one in reads[name] for name in reads if name != first)]
    residual = [name for name in layout.residual if name != last and not (handed_on and first in reads[name])]
    chained = {} if coupling is None else _chained(reads, residual)
    streams: dict[str, tuple[str, ...]]
    streams = {name: (name, "the state before it") if name in chained else (name,) for name in reads}
    streams[first] += tuple(handed_on)
    given = {"build": str(build), "kwargs": dict(kwargs), "names": inputs}
    shared = {key: value for key, value in given.items() if value}
    made: list[NodeSpec] = []
    for name, own in reads.items():
        block: str = "module-part-head" if name == last else "module-part"
        kind: Kind | None = None
        options: dict[str, Any] = {"part": name}
        producers = list(dict.fromkeys(first if one in inputs else one for one in own)) if made else []
        there = [one for producer in producers for one in streams[producer]] if made else list(inputs)
        if name in chained:
            block, kind, coefficients = link_of_chain(chained[name], anchors, alpha, beta)
            options |= coefficients
        elif list(own) != there and there:
            options["reads"] = tuple(there.index(one) for one in own)
        if inputs and not made:
            options |= {"by_name": own == inputs, "hands_on": tuple(inputs.index(one) for one in handed_on)}
        reading = None if not made or producers == [made[-1].name] else tuple(producers)
        made.append(NodeSpec(name=name, block=block, kind=kind, inputs=reading, options=shared | options))
    return tuple(made)


def link_of_chain(place: int, anchors: int | None, alpha: float, beta: float) -> tuple[str, Kind, dict[str, float]]:
    """Return the block, the kind and the coefficients of a layer at a place of a reversible chain."""
    kind: Kind = "buffered" if anchors is not None and (place + 1) % anchors == 0 else "reversible"
    if place == 0:
        return "dual-residual-entry", kind, {"alpha": alpha}
    return "dual-residual-step", kind, {"alpha": alpha, "beta": beta}


def _reads(declared: Mapping[str, tuple[str, ...]], inputs: tuple[str, ...], build: str) -> dict[str, tuple[str, ...]]:
    """Return what each part reads: what it names, or the part before it; the first reads the sample, whose inputs may have names."""
    reads: dict[str, tuple[str, ...]] = {}
    for name, own in declared.items():
        before = list(reads)
        reads[name] = own or tuple(before[-1:] or inputs)
        if unknown := [one for one in reads[name] if one not in (*inputs, *before)]:
            there = ", ".join((*inputs, *before)) or "none"
            message = f"the part {name!r} of {build} reads {unknown[0]!r}; in front of it are {there}"
            raise wrong(message, "name parts, and inputs of a sample, as they are")
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


class _OfNetwork(Block):
    """A block that has a part of a network: the part itself is no submodule, but all that the network has of it."""

    draws = False  # each instance says it, of modules that the network does not have
    drawn_as = "network"  # all parts draw the random numbers of one constructor
    part: nn.Module
    links: Sequence[Link]
    of: str
    """The part, for messages."""
    reads: Sequence[int]
    names: Sequence[str]
    """Of the sample's inputs, where the part is given them by name."""
    hands_on: Sequence[int]

    def __init__(
        self,
        inputs: Sequence[Shape],
        *,
        build: Annotated[Code, "class or function that makes the network"],
        kwargs: Arguments = NO_ARGUMENTS,
        part: Annotated[str, "name of the part"],
        reads: Annotated[tuple[int, ...], "places of the node's streams that the part reads; default: all"] = (),
        names: Annotated[tuple[str, ...], "names of a sample's inputs, in the order of the data"] = (),
        by_name: Annotated[
            bool, "whether the part reads all of them, by name where its forward has such names"
        ] = False,
        hands_on: Annotated[tuple[int, ...], "places of the node's streams that it returns behind its own"] = (),
        **options: Any,
    ) -> None:
        super().__init__(inputs, **options)
        maker = Maker.of(build, kwargs, names)
        network = network_of(maker)
        taken, links = network.give(self, part)
        # Not by `setattr`: a module of the network may have any of these names.
        vars(self).update(
            part=taken,
            links=links,
            of=f"the part {part} of {build}",
            reads=reads,
            names=names if by_name and reads_names(taken, names) else (),
            hands_on=hands_on,
            draws=may_draw(taken),
            shared_parameters=network.shared_by(self),
            of_network=maker,
            built=network,  # until all nodes are built: then it is forgotten
        )
        self.train()

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the part, as its own `train` does."""
        super().train(mode)
        self.part.train(mode)
        return self

    def get_submodule(self, target: str) -> nn.Module:
        """Return a module of the network; names of a block's own attributes are not among them."""
        found: nn.Module = self
        for name in target.split(".") if target else ():
            found = found._modules[name]  # type: ignore[assignment]  # noqa: SLF001
        return found

    def value(self, *streams: Tensor) -> Any:
        """Return what the part makes of the streams that it reads."""
        for own, key, of_block, name in self.links:
            own[key] = of_block[name]  # the tensor that the block has now
        if self.names:
            return self.part(**dict(zip(self.names, streams, strict=True)))
        return self.part(*((streams[at] for at in self.reads) if self.reads else streams))

    def residual(self, x: Tensor) -> Tensor:
        """Return B(x), of a residual part."""
        (value,) = as_outputs(self.value(x), self.of)
        return value


class Part(_OfNetwork, Buffered):
    """A part of a network: streams to those that later parts read."""

    draws = False

    def forward(self, *streams: Tensor) -> Streams:
        """Return the part's output, or its outputs, as streams."""
        return as_outputs(self.value(*streams), self.of) + tuple(streams[at] for at in self.hands_on)


class PartHead(_OfNetwork, StructuredHead):
    """The last part of a network: streams to what the network returns."""

    draws = False


class DualResidualEntryPart(_OfNetwork, DualResidualEntry):
    """The first residual part of a chain: one stream to two."""

    draws = False


class DualResidualStepPart(_OfNetwork, DualResidualStep):
    """A residual part made reversible, as in Dr2Net: Zhao et al. 2024, https://arxiv.org/abs/2401.04105, equation 1."""

    draws = False
