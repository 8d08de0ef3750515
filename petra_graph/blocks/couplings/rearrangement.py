"""Reversible blocks without a function: they move values, or rotate channels.

| block | map | inverse | source |
|---|---|---|---|
| `SpaceToDepth` | s x s pixels of a channel become s^2 channels of a pixel | the reverse | i-RevNet: Jacobsen et al. 2018, https://arxiv.org/abs/1802.07088, section 3 |
| `ChannelPermutation` | channel i of all streams goes to place p(i) | the inverse permutation | NICE, Dinh et al. 2015, https://arxiv.org/abs/1410.8516: exchanged parts |
| `OrthogonalMixing` | y = Q x over the channels of all streams, Q = exp(A - A^T) | x = Q^T y | the invertible 1x1 convolution of Glow, Kingma and Dhariwal 2018, https://arxiv.org/abs/1807.03039, with an orthogonal matrix |

Rounding: moving values is exact, also on a grid; an orthogonal matrix keeps the size of an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from attrs import frozen
from torch import Tensor, nn

from petra_graph.blocks.block_kinds import Reversible, Shape, Streams, Undo, Undone
from petra_graph.blocks.couplings.coupling import evaluate
from petra_graph.blocks.differentiation import without_autocast
from petra_graph.kinds.declaration import option
from petra_graph.spec.bounds import AtLeast


@frozen(kw_only=True)
class SpaceToDepthOptions:
    """How far the resolution falls."""

    factor: int = option("pixels of a side that become channels", default=2, validator=AtLeast(2))


class SpaceToDepth(Reversible):
    """Each stream [n, c, h, w] becomes [n, c s^2, h / s, w / s]: down-sampling that loses nothing.

    The shapes change, and the block is reversible all the same: its inverse returns the shapes of its inputs.
    """

    Options = SpaceToDepthOptions

    def __init__(self, inputs: Sequence[Shape], options: SpaceToDepthOptions) -> None:
        super().__init__(inputs, options)
        for shape in inputs:
            _, *sides = shape
            if len(sides) != 2 or any(side % options.factor for side in sides):  # noqa: PLR2004  height, width
                raise ValueError(f"sides of images must be multiples of {options.factor} (got {list(shape)})")

    def forward(self, *streams: Tensor) -> Streams:
        return tuple(_to_depth(stream, self.options.factor) for stream in streams)

    def inverse(self, *outputs: Tensor) -> Streams:
        return tuple(_to_space(stream, self.options.factor) for stream in outputs)

    def reverse_steps(self) -> Sequence[Undo]:
        return (partial(_moved_back, self),)


class ChannelMap(Reversible):
    """A block that maps the channels of all its streams together; the other dimensions of the streams are equal."""

    channel_dimension: ClassVar[int] = 1
    """1 for images [n, c, h, w], -1 for tokens [n, length, c]."""

    def __init__(self, inputs: Sequence[Shape], options: Any) -> None:
        super().__init__(inputs, options)
        at = self.channel_dimension - 1 if self.channel_dimension > 0 else self.channel_dimension
        self.widths = [shape[at] for shape in inputs]

    def joined(self, streams: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(streams), self.channel_dimension)

    def parts(self, joined: Tensor) -> Streams:
        return torch.split(joined, self.widths, self.channel_dimension)


@frozen(kw_only=True)
class PermutationOptions:
    """Which permutation."""

    seed: int = option("draws the permutation", default=0)


class ChannelPermutation(ChannelMap):
    """A fixed random permutation of the channels of all streams, kept in a buffer."""

    Options = PermutationOptions
    order: Tensor

    def __init__(self, inputs: Sequence[Shape], options: PermutationOptions) -> None:
        super().__init__(inputs, options)
        generator = torch.Generator().manual_seed(options.seed)
        order = torch.randperm(sum(self.widths), generator=generator, device="cpu")
        self.register_buffer("order", order.to(torch.empty(0).device))

    def forward(self, *streams: Tensor) -> Streams:
        return self.parts(self.joined(streams).index_select(self.channel_dimension, self.order))

    def inverse(self, *outputs: Tensor) -> Streams:
        return self.parts(self.joined(outputs).index_select(self.channel_dimension, self.order.argsort()))

    def reverse_steps(self) -> Sequence[Undo]:
        return (partial(_moved_back, self),)


class OrthogonalMixing(ChannelMap):
    """A learned rotation of the channels of all streams, the same at every place; it begins with a random one.

    `generator` is A, a square matrix of which the antisymmetric part counts: any value of it gives a rotation.
    """

    def __init__(self, inputs: Sequence[Shape], options: Any) -> None:
        super().__init__(inputs, options)
        width = sum(self.widths)
        self.generator = nn.Parameter(torch.randn(width, width) / max(width, 1) ** 0.5)

    def rotation(self) -> Tensor:
        """Return Q [c, c]."""
        rotation: Tensor = torch.linalg.matrix_exp(self.generator - self.generator.T)
        return rotation

    def forward(self, *streams: Tensor) -> Streams:
        """Return Q x."""
        return self.parts(_rotated(self.joined(streams), self.rotation(), self.channel_dimension))

    def inverse(self, *outputs: Tensor) -> Streams:
        """Return Q^T y."""
        return self.parts(_rotated(self.joined(outputs), self.rotation().T, self.channel_dimension))

    def reverse_steps(self) -> Sequence[Undo]:
        """Return the one step, with one evaluation of Q."""
        return (partial(_rotated_back, self),)


def _moved_back(block: SpaceToDepth | ChannelPermutation, outputs: Streams) -> Undone:
    return Undone(lambda: block.inverse(*outputs), lambda gradients: block.inverse(*gradients))


def _rotated_back(block: OrthogonalMixing, outputs: Streams) -> Undone:
    dimension = block.channel_dimension
    evaluation = evaluate(block.rotation)
    (rotation,) = evaluation.values
    x = _rotated(block.joined(outputs), rotation.T, dimension)

    def vjp(gradients: Streams) -> Streams:
        d_y = block.joined(gradients)
        evaluation.vjp((torch.tensordot(_rows(d_y, dimension), _rows(x, dimension), ([0], [0])),))
        return block.parts(_rotated(d_y, rotation.T, dimension))

    return Undone(lambda: block.parts(x), vjp)


# As torch's pixel_unshuffle and pixel_shuffle, which copy once more on the meta device.


def _to_depth(image: Tensor, s: int) -> Tensor:
    """[n, c, h, w] to [n, c s^2, h / s, w / s]."""
    n, c, h, w = image.shape
    return image.reshape(n, c, h // s, s, w // s, s).permute(0, 1, 3, 5, 2, 4).reshape(n, c * s * s, h // s, w // s)


def _to_space(image: Tensor, s: int) -> Tensor:
    """[n, c s^2, h, w] to [n, c, h s, w s]."""
    n, c, h, w = image.shape
    return image.reshape(n, c // s**2, s, s, h, w).permute(0, 1, 4, 2, 5, 3).reshape(n, c // s**2, h * s, w * s)


def _rotated(stream: Tensor, rotation: Tensor, dimension: int) -> Tensor:
    """Apply a matrix to the channels, in the stream's type whatever autocast says: rounding there would not be undone."""
    with without_autocast(stream.device.type):
        return (stream.movedim(dimension, -1) @ rotation.T).movedim(-1, dimension)


def _rows(stream: Tensor, dimension: int) -> Tensor:
    """Return channels as the columns of a matrix [n * places, c]."""
    return stream.movedim(dimension, -1).flatten(0, -2)
