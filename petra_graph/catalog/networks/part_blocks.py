"""Parts of a network as blocks: buffered, the head, and steps of a reversible chain of residual parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from torch import Tensor, nn

from petra_graph.blocks import (
    Block,
    Buffered,
    DualResidualEntry,
    DualResidualStep,
    MidpointEntry,
    MidpointStep,
    Shape,
    Streams,
)
from petra_graph.blocks.module_block import as_outputs
from petra_graph.blocks.randomness import may_draw
from petra_graph.catalog.networks.module_blocks import StructuredHead
from petra_graph.catalog.networks.parts import Link, network_of, parts_of, reads_names, take_part, whole_network
from petra_graph.plugins import Code


class _OfNetwork(Block):
    """A block that has a part of a network: the part itself is no submodule, but all that the network has of it."""

    draws = False  # each instance says it, of modules that the network does not have
    drawn_as = "network"  # all parts draw the random numbers of one constructor
    parts_of = staticmethod(parts_of)
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
        kwargs: Annotated[Mapping[str, Any], "arguments that it is called with, by name"] = {},
        split: Annotated[tuple[str, ...], "as of the architecture"] = (),
        part: Annotated[str, "name of the part"],
        reads: Annotated[tuple[int, ...], "places of the node's streams that the part reads; default: all"] = (),
        names: Annotated[tuple[str, ...], "names of a sample's inputs, in the order of the data"] = (),
        by_name: Annotated[
            bool, "whether the part is given all of them, by name where its forward has such names"
        ] = False,
        hands_on: Annotated[
            tuple[int, ...], "places of the node's streams that it returns after its own, for later parts"
        ] = (),
        **options: Any,
    ) -> None:
        super().__init__(inputs, **options)
        network = network_of(build, kwargs, split)
        taken, links = take_part(self, network, part)
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
            of_network=whole_network(build, kwargs, names),
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
        for link in self.links:
            link.follow()
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
        own = as_outputs(self.value(*streams), self.of)
        return own + tuple(streams[at] for at in self.hands_on) if self.hands_on else own


class PartHead(_OfNetwork, StructuredHead):
    """The last part of a network: streams to what the network returns."""

    draws = False


class MidpointEntryPart(_OfNetwork, MidpointEntry):
    """The first residual part of a chain: one stream to two."""

    draws = False


class MidpointStepPart(_OfNetwork, MidpointStep):
    """A residual part as a step of the midpoint method."""

    draws = False


class DualResidualEntryPart(_OfNetwork, DualResidualEntry):
    """The first residual part of a chain: one stream to two."""

    draws = False


class DualResidualStepPart(_OfNetwork, DualResidualStep):
    """A residual part made reversible, as in Dr2Net: Zhao et al. 2024, https://arxiv.org/abs/2401.04105, equation 1."""

    draws = False
