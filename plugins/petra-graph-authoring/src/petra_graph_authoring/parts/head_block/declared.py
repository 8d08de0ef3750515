from petra_graph.plugins import AtLeast, BlockDeclaration, declares, option


@declares(BlockDeclaration, "petra_graph_examples.blocks:MeanHead", kind="head", streams=2)
class MeanHead:
    """Mean over space of the summed streams, one linear layer."""

    outputs: int = option("outputs of the linear layer", validator=AtLeast(1))
