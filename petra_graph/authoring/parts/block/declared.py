from typing import Literal

from attrs import frozen
from petra_graph.plugins import BlockDeclaration, option


@frozen(kw_only=True)
class RevTanhOptions:
    """Residual function of one convolution."""

    activation: Literal["tanh", "sigmoid"] = option("function after the convolution", default="tanh")


REV_TANH = BlockDeclaration(
    summary="Additive coupling of one convolution.",
    options=RevTanhOptions,
    build="petra_graph_examples.blocks:RevTanh",
    kind="reversible",
    streams=2,
    api=1,
)
