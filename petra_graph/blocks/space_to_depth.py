"""Down-sampling that loses nothing: s x s pixels of a channel become s^2 channels of a pixel, which is exact both ways.

i-RevNet: Jacobsen et al. 2018, https://arxiv.org/abs/1802.07088, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from petra_graph.blocks.block_kinds import Reversed, Reversible, Shape, Streams


class SpaceToDepth(Reversible):
    """Each stream [n, c, h, w] becomes [n, c s^2, h / s, w / s]; the inverse returns the shapes of the inputs."""

    def __init__(self, inputs: Sequence[Shape], *, factor: int = 2) -> None:
        super().__init__(inputs)
        self.factor = factor
        for shape in inputs:
            _, *sides = shape
            if factor < 2 or len(sides) != 2 or any(side % factor for side in sides):  # noqa: PLR2004  height, width
                raise ValueError(f"sides of images must be multiples of {factor} (got {list(shape)})")

    def forward(self, *streams: Tensor) -> Streams:
        return tuple(_to_depth(stream, self.factor) for stream in streams)

    def inverse(self, *outputs: Tensor) -> Streams:
        return tuple(_to_space(stream, self.factor) for stream in outputs)

    def reverse_vjp(self, outputs: Streams, gradients: Streams) -> Reversed:
        found = self.inverse(*gradients)
        return Reversed(self.inverse(*outputs), found)


# As torch's pixel_unshuffle and pixel_shuffle, which copy once more on the meta device.


def _to_depth(image: Tensor, s: int) -> Tensor:
    n, c, h, w = image.shape
    return image.reshape(n, c, h // s, s, w // s, s).permute(0, 1, 3, 5, 2, 4).reshape(n, c * s * s, h // s, w // s)


def _to_space(image: Tensor, s: int) -> Tensor:
    n, c, h, w = image.shape
    return image.reshape(n, c // s**2, s, s, h, w).permute(0, 1, 4, 2, 5, 3).reshape(n, c // s**2, h * s, w * s)
