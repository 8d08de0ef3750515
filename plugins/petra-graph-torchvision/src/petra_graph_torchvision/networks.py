"""Networks of torchvision, built once a process and cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from petra_graph_modules.cutting import CannotCut, CutNetwork, HeldNetwork, Part, RecordedForward, parts_of, weighs
from torch import Tensor, nn
from torch.nn import functional
from torchvision import __version__, models

from petra_graph_torchvision.cutting import may_cut, traced
from petra_graph_torchvision.declared import PieceOptions
from petra_graph_torchvision.table import nodes

_COLOURS = 3
Arguments = tuple[tuple[str, Any], ...]
_WITHOUT_AUXILIARY = {"aux_logits": False, "init_weights": True}
_FIXED: Mapping[str, Mapping[str, Any]] = {"googlenet": _WITHOUT_AUXILIARY, "inception_v3": _WITHOUT_AUXILIARY}
"""Arguments that no option changes: a second head would have a loss of its own, and a graph of nodes has one."""


def cut_network(options: PieceOptions) -> CutNetwork:
    """Return the network that a piece's options describe.

    Raises:
        ValueError: torchvision refuses the arguments, or the network cannot be cut.
    """
    return build_and_cut(options.network, options.classes, options.sides, tuple(sorted(options.arguments.items())))


@cache
def build_and_cut(name: str, classes: int, sides: tuple[int, int], arguments: Arguments) -> CutNetwork:
    """Return a network, which stays in memory without its drawn values; see `cut_network`."""
    given = dict(arguments)
    fixed = {"num_classes": classes, "weights": None, **_FIXED.get(name, {}), **_for_sides(name, sides)}
    if taken := sorted(fixed.keys() & given.keys()):
        raise ValueError(f"arguments cannot have {', '.join(taken)}, which follow from the network and the data")
    try:
        held = HeldNetwork.of(lambda: models.get_model(name, **fixed, **given))
    except TypeError as error:
        raise ValueError(f"torchvision's {name} does not take these arguments: {error}") from None
    try:
        network, graph = held.module, traced(held.module)
        parts = parts_of(network, graph, lambda unit: weighs(network.get_submodule(unit)), partial(may_cut, network))
    except CannotCut as error:
        raise ValueError(f"{name} cannot be cut into nodes: {error}") from None
    return CutNetwork(held, RecordedForward(graph, graph), {part.name: part for part in parts})


def _for_sides(name: str, sides: tuple[int, int]) -> Mapping[str, Any]:
    """Return the argument with which a transformer is built for images of some size; other networks read any size."""
    if name.startswith("vit_"):
        if sides[0] != sides[1]:
            raise ValueError(f"{name} reads square images (got {sides[0]}x{sides[1]}); set resize")
        return {"image_size": sides[0]}
    return {"input_size": sides} if name.startswith("maxvit_") else {}


@cache
def whole_network(network: CutNetwork, sides: tuple[int, int]) -> Callable[[], nn.Module]:
    """Return what makes the uncut network, which reads images as its first piece does."""

    def build() -> nn.Module:
        made = network.held.build()
        made.register_forward_pre_hook(lambda _, images: as_read(images[0], sides))
        return made

    return build


def as_read(image: Tensor, sides: tuple[int, int]) -> Tensor:
    """Return images [n, c, h, w] in the network's size, one channel as grey."""
    if image.shape[1] == 1:
        image = image.expand(-1, _COLOURS, -1, -1)
    if image.shape[2:] == sides:
        return image
    return functional.interpolate(image, sides, mode="bilinear", antialias=True)


def find_piece(options: PieceOptions) -> tuple[CutNetwork, Part]:
    """Return a network and the piece of it that options name.

    Raises:
        ValueError: as `cut_network`; or this torchvision cuts the network at other places than the table says.
    """
    network = cut_network(options)
    if list(network.parts) != list(nodes(options.network)):
        differ = sorted(network.parts.keys() ^ nodes(options.network).keys())
        message = f"torchvision {__version__} has {options.network} with other blocks than this package knows"
        raise ValueError(f"{message}: {', '.join(differ)}")
    if options.node not in network.parts:
        raise ValueError(f"{options.network} has no node {options.node!r}; it has {', '.join(network.parts)}")
    return network, network.parts[options.node]
