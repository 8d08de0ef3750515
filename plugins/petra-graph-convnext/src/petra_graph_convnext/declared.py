"""What the entry point names: the block's options and where its code lives, without torch."""

from __future__ import annotations

from typing import Any

from attrs import Attribute, frozen
from attrs.validators import ge, lt

from petra_graph.registry.contracts import BlockDeclaration, option


def _odd(_options: object, attribute: Attribute[int], value: int) -> None:
    if value % 2 == 0:
        raise ValueError(
            f"{attribute.name!r} must be odd, so that the convolution keeps the image's size (got {value})"
        )


def _default(text: str, value: Any, unit: str = "", *, validator: Any) -> Any:
    return option(text, default=value, unit=unit, validator=validator)


@frozen(kw_only=True)
class RevConvNextOptions:
    """Residual function of ConvNeXt: depthwise convolution, normalisation, pointwise expansion, GELU, pointwise.

    Liu et al. 2022, https://arxiv.org/abs/2201.03545, figure 4.
    """

    kernel: int = _default("side of the depthwise convolution's kernel", 7, "pixels", validator=[ge(1), _odd])
    expansion: int = _default("hidden channels as a multiple of the stream's", 4, validator=ge(1))
    dropout: float = _default("probability of dropping a hidden value", 0.0, validator=[ge(0), lt(1)])


REV_CONVNEXT = BlockDeclaration(
    summary="Reversible ConvNeXt block: additive coupling, depthwise and pointwise convolutions.",
    options=RevConvNextOptions,
    build="petra_graph_convnext.block:RevConvNext",
    kind="reversible",
    streams=2,
)
