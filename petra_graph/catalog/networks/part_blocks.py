"""Parts of a network as blocks: buffered, the head, and steps of a reversible chain of residual parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Self

from torch import Tensor, nn

from petra_graph.blocks import (
    Block,
    Buffered,
    DualResidualEntry,
    DualResidualStep,
    Head,
    MidpointEntry,
    MidpointStep,
    Shape,
    Streams,
)
from petra_graph.blocks.randomness import may_draw
from petra_graph.blocks.residual_chain import COEFFICIENTS, coefficient
from petra_graph.catalog.networks.module_blocks import as_outputs, put_together, taken_apart
from petra_graph.catalog.networks.parts import Link, network_of, reads_names, take_part, whole_network
from petra_graph.plugins import Code, GreaterThan


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
    ) -> None:
        super().__init__(inputs)
        network = network_of(build, kwargs, split)
        taken, links = take_part(self, network, part)
        of = f"the part {part} of {build}"
        vars(self).update(part=taken, links=links, of=of, reads=reads, names=names, hands_on=hands_on)
        self.draws = may_draw(taken)
        ids = {id(one) for one in network.module.parameters()} & network.labels.keys()
        own = dict(self.named_parameters(remove_duplicate=False))
        shared = {
            name: network.labels[id(one)]
            for name, one in network.module.named_parameters(remove_duplicate=False)
            if id(one) in ids and name in own
        }
        self.shared_parameters = shared
        self.of_network = whole_network(build, kwargs, names)
        vars(self).update(built=network, parts_of=_parts_of)  # `built` until all nodes are built: then it is forgotten
        self.by_name = by_name and reads_names(taken, names)
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
        if self.by_name:
            return self.part(**dict(zip(self.names, streams, strict=True)))
        if self.reads:
            streams = tuple(streams[at] for at in self.reads)
        return self.part(*streams)


def _parts_of(network: nn.Module) -> Mapping[str, nn.Module]:
    """Return the parts of a network that `of_network` has made."""
    declared: Callable[[], Mapping[str, Any]] | None = getattr(network, "nodes", None)
    if not callable(declared):
        return dict(network.named_modules())
    return {name: one[0] if isinstance(one, tuple) else one for name, one in declared().items()}


class Part(_OfNetwork, Buffered):
    """A part of a network: streams to those that later parts read."""

    draws = False

    def forward(self, *streams: Tensor) -> Streams:
        """Return the part's output, or its outputs, as streams."""
        own = as_outputs(self.value(*streams), self.of)
        return own + tuple(streams[at] for at in self.hands_on) if self.hands_on else own


class PartHead(_OfNetwork, Head):
    """The last part of a network: streams to what the network returns."""

    draws = False

    def __init__(self, inputs: Sequence[Shape], **options: Any) -> None:
        super().__init__(inputs, **options)
        self.structures: dict[bool, Any] = {}

    def forward(self, *streams: Tensor) -> Streams:
        """Return the tensors of what the part returns."""
        tensors, structure = taken_apart(self.value(*streams), self.of)
        self.structures[self.training] = structure
        return tensors

    def returned(self, streams: Streams) -> Any:
        """Return what the network returns in this mode, of which these are the tensors."""
        return put_together(self.structures.get(self.training, 0), streams)


class _Residual(_OfNetwork):
    def residual(self, x: Tensor) -> Tensor:
        """Return B(x)."""
        (value,) = as_outputs(self.value(x), self.of)
        return value


class MidpointEntryPart(_Residual, MidpointEntry):
    """The first residual part of a chain: one stream to two."""

    draws = False


class MidpointStepPart(_Residual, MidpointStep):
    """A residual part as a step of the midpoint method."""

    draws = False


Alpha = Annotated[float, "coefficient of the part's own residual connection at the start"]
Beta = Annotated[float, "coefficient of the reversible residual connection at the start", GreaterThan(0)]


class DualResidualEntryPart(_Residual, DualResidualEntry):
    """The first residual part of a chain: one stream to two."""

    draws = False
    begun_anew = COEFFICIENTS

    def __init__(self, inputs: Sequence[Shape], *, alpha: Alpha = 1.0, beta: Beta = 0.1, **options: Any) -> None:
        super().__init__(inputs, **options)
        self.alpha = coefficient(alpha)


class DualResidualStepPart(_Residual, DualResidualStep):
    """A residual part made reversible, as in Dr2Net: Zhao et al. 2024, https://arxiv.org/abs/2401.04105, equation 1."""

    draws = False
    begun_anew = COEFFICIENTS

    def __init__(self, inputs: Sequence[Shape], *, alpha: Alpha = 1.0, beta: Beta = 0.1, **options: Any) -> None:
        super().__init__(inputs, **options)
        self.alpha, self.beta = coefficient(alpha), coefficient(beta)
