from petra_graph.plugins import AtLeast, BlockDeclaration, declares, option


@declares(BlockDeclaration, "petra_graph_examples.blocks:ImagePatches", kind="buffered", streams=1)
class ImagePatches:
    """Linear map of image patches to two streams."""

    channels: int = option("channels of each output stream", validator=AtLeast(1))
    side: int = option("side of a patch", default=2, unit="pixels", validator=AtLeast(1))
