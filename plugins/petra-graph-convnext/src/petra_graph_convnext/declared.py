"""The declaration that the entry point names: the block's options and the location of its code, without torch."""

from __future__ import annotations

from attrs import Attribute, frozen

from petra_graph.plugins import AtLeast, BlockDeclaration, LessThan, option


def _odd(_options: object, _attribute: Attribute[int], value: int) -> None:
    if value % 2 == 0:
        raise ValueError(f"must be odd, so that the convolution keeps the image's size (got {value})")


@frozen(kw_only=True)
class RevConvNextOptions:
    """Residual function of ConvNeXt: depthwise convolution, normalisation, pointwise expansion, GELU, pointwise.

    Liu et al. 2022, https://arxiv.org/abs/2201.03545, figure 4.
    """

    kernel: int = option(
        "side of the depthwise convolution's kernel", default=7, unit="pixels", validator=[AtLeast(1), _odd]
    )
    expansion: int = option("hidden channels as a multiple of the stream's", default=4, validator=AtLeast(1))
    dropout: float = option("probability of dropping a hidden value", default=0.0, validator=[AtLeast(0), LessThan(1)])


REV_CONVNEXT = BlockDeclaration(
    summary="Reversible ConvNeXt block: additive coupling, depthwise and pointwise convolutions.",
    options=RevConvNextOptions,
    build="petra_graph_convnext.block:RevConvNext",
    kind="reversible",
    streams=2,
)
