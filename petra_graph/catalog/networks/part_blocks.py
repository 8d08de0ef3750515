"""Parts of a network as blocks: buffered, the head, and steps of a reversible chain of residual parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

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
from petra_graph.blocks.couplings.residual_chain import COEFFICIENTS, coefficient
from petra_graph.blocks.randomness import may_draw
from petra_graph.catalog.networks.declared import CoupledPartOptions, PartOptions
from petra_graph.catalog.networks.module_blocks import as_outputs, put_together, taken_apart
from petra_graph.catalog.networks.parts import Link, network_of, reads_names, take_part, whole_network


class _OfNetwork(Block):
    """A block that has a part of a network: the part itself is no submodule, but all that the network has of it."""

    Options = PartOptions
    draws = False  # each instance says it, of modules that the network does not have
    part: nn.Module
    links: Sequence[Link]

    def __init__(self, inputs: Sequence[Shape], options: PartOptions) -> None:
        super().__init__(inputs, options)
        network = network_of(options)
        part, links = take_part(self, network, options.part)
        vars(self).update(part=part, links=links)
        self.draws = may_draw(part)
        ids = {id(one) for one in network.module.parameters()} & network.labels.keys()
        own = dict(self.named_parameters(remove_duplicate=False))
        shared = {
            name: network.labels[id(one)]
            for name, one in network.module.named_parameters(remove_duplicate=False)
            if id(one) in ids and name in own
        }
        self.shared_parameters = shared
        self.of_network = whole_network(options)
        vars(self).update(built=network, parts_of=_parts_of)  # `built` until all nodes are built: then it is forgotten
        self.by_name = options.by_name and reads_names(part, options.names)
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
            return self.part(**dict(zip(self.options.names, streams, strict=True)))
        if self.options.reads:
            streams = tuple(streams[at] for at in self.options.reads)
        return self.part(*streams)


def _parts_of(network: nn.Module) -> Mapping[str, nn.Module]:
    """Return the parts of a network that `of_network` has made."""
    declared: Callable[[], Mapping[str, Any]] | None = getattr(network, "nodes", None)
    if not callable(declared):
        return dict(network.named_modules())
    return {name: one[0] if isinstance(one, tuple) else one for name, one in declared().items()}


class Part(_OfNetwork, Buffered):
    """Streams to those that later parts read."""

    draws = False

    def forward(self, *streams: Tensor) -> Streams:
        """Return the part's output, or its outputs, as streams."""
        own = as_outputs(self.value(*streams), f"the part {self.options.part} of {self.options.build}")
        return own + tuple(streams[at] for at in self.options.hands_on) if self.options.hands_on else own


class PartHead(_OfNetwork, Head):
    """Streams to what the network returns."""

    draws = False

    def __init__(self, inputs: Sequence[Shape], options: PartOptions) -> None:
        super().__init__(inputs, options)
        self.structures: dict[bool, Any] = {}

    def forward(self, *streams: Tensor) -> Streams:
        """Return the tensors of what the part returns."""
        tensors, structure = taken_apart(self.value(*streams), f"{self.options.build}")
        self.structures[self.training] = structure
        return tensors

    def returned(self, streams: Streams) -> Any:
        """Return what the network returns in this mode, of which these are the tensors."""
        return put_together(self.structures.get(self.training, 0), streams)


class _Residual(_OfNetwork):
    def residual(self, x: Tensor) -> Tensor:
        """Return B(x)."""
        (value,) = as_outputs(self.value(x), f"the part {self.options.part} of {self.options.build}")
        return value


class MidpointEntryPart(_Residual, MidpointEntry):
    """The first part of a chain."""

    draws = False


class MidpointStepPart(_Residual, MidpointStep):
    """A further part of a chain."""

    draws = False


class DualResidualEntryPart(_Residual, DualResidualEntry):
    """The first part of a chain."""

    Options = CoupledPartOptions
    draws = False
    begun_anew = COEFFICIENTS

    def __init__(self, inputs: Sequence[Shape], options: CoupledPartOptions) -> None:
        super().__init__(inputs, options)
        self.alpha = coefficient(options.alpha)


class DualResidualStepPart(_Residual, DualResidualStep):
    """A further part of a chain."""

    Options = CoupledPartOptions
    draws = False
    begun_anew = COEFFICIENTS

    def __init__(self, inputs: Sequence[Shape], options: CoupledPartOptions) -> None:
        super().__init__(inputs, options)
        self.alpha, self.beta = coefficient(options.alpha), coefficient(options.beta)
