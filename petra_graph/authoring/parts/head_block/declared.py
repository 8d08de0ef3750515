from attrs import frozen
from petra_graph.plugins import AtLeast, BlockDeclaration, option


@frozen(kw_only=True)
class MeanHeadOptions:
    """A linear layer over the mean of each channel."""

    outputs: int = option("outputs of the linear layer", validator=AtLeast(1))


MEAN_HEAD = BlockDeclaration(
    summary="Mean over space of the summed streams, one linear layer.",
    options=MeanHeadOptions,
    build="petra_graph_examples.blocks:MeanHead",
    kind="head",
    streams=2,
    api=1,
)
