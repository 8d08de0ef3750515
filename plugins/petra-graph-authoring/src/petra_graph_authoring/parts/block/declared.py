from typing import Literal

from petra_graph.plugins import BlockDeclaration, declares, option


@declares(BlockDeclaration, "petra_graph_examples.blocks:RevTanh", kind="reversible", streams=2)
class RevTanh:
    """Additive coupling of one convolution."""

    activation: Literal["tanh", "sigmoid"] = option("function after the convolution", default="tanh")
