"""Blocks and callback as the entry points name them, without torch."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import Attribute, frozen

from petra_graph.plugins import AtLeast, BlockDeclaration, GreaterThan, option
from petra_graph_torchvision.table import unknown

_HERE = "petra_graph_torchvision"
Argument = bool | int | float | str


def _network(_: object, __: Attribute[str], value: str) -> None:
    problem = unknown(value)
    if problem is not None:
        raise ValueError(problem)


@frozen(kw_only=True)
class NetworkOptions:
    """A network by its name in torchvision."""

    network: str = option('name of the network in torchvision, as in "resnet50"', validator=_network)
    arguments: Mapping[str, Argument] = option(
        "further arguments of torchvision's function of that name, as in { dropout = 0.0 }", default={}
    )


@frozen(kw_only=True)
class PieceOptions(NetworkOptions):
    """One piece of a network."""

    node: str = option('name of the piece: of its module with weights, as in "layer1.0"')
    classes: int = option("outputs of the whole network", validator=AtLeast(1))
    sides: tuple[int, int] = option(
        "height and width of the images that the network reads, which transformers are built for", unit="pixels"
    )


@frozen(kw_only=True)
class DualResidualOptions(PieceOptions):
    """A residual block of a network, made reversible: x' = x_next + (alpha - 1) x + beta x_previous.

    Zhao et al. 2024, "Dr2Net", https://arxiv.org/abs/2401.04105, equation 1.
    """

    alpha: float = option("coefficient of the block's own residual connection at the start", default=1.0)
    beta: float = option(
        "coefficient of the reversible residual connection at the start", default=0.1, validator=GreaterThan(0)
    )


PIECE = BlockDeclaration(
    summary="A piece of a torchvision network: a residual block, or a layer with what follows it.",
    options=PieceOptions,
    build=f"{_HERE}.blocks:NetworkPiece",
    kind="buffered",
)
HEAD = BlockDeclaration(
    summary="The last piece of a torchvision network.",
    options=PieceOptions,
    build=f"{_HERE}.blocks:NetworkHead",
    kind="head",
)
DUAL_RESIDUAL_ENTRY = BlockDeclaration(
    summary="The first of several residual blocks made reversible: one stream to two.",
    options=DualResidualOptions,
    build=f"{_HERE}.dual_residual:DualResidualEntry",
    kind="reversible",
    streams=1,
)
DUAL_RESIDUAL = BlockDeclaration(
    summary="A residual block made reversible: two streams to two.",
    options=DualResidualOptions,
    build=f"{_HERE}.dual_residual:DualResidual",
    kind="reversible",
    streams=2,
)
