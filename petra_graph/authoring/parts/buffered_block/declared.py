from attrs import frozen
from petra_graph.plugins import AtLeast, BlockDeclaration, option


@frozen(kw_only=True)
class ImagePatchesOptions:
    """Square patches of an image, mapped to two streams."""

    channels: int = option("channels of each output stream", validator=AtLeast(1))
    side: int = option("side of a patch", default=2, unit="pixels", validator=AtLeast(1))


IMAGE_PATCHES = BlockDeclaration(
    summary="Linear map of image patches to two streams.",
    options=ImagePatchesOptions,
    build="petra_graph_examples.blocks:ImagePatches",
    kind="buffered",
    streams=1,
    api=1,
)
