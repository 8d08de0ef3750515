"""Pieces of torchvision's networks as nodes.

A block's parameters have the names that they have in torchvision's `state_dict`, as in `layer1.0.conv1.weight`, so that a
file of torchvision's weights fits them.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from petra_graph.blocks import Block, Buffered, Head, Shape, Streams
from petra_graph.cutting import copy_part
from petra_graph_torchvision.declared import PieceOptions
from petra_graph_torchvision.networks import find_piece

_COLOURS = 3


class Piece(Block):
    """What all pieces share: the operations between two places where the network is cut."""

    Options = PieceOptions
    of_network = True

    def __init__(self, inputs: Sequence[Shape], options: PieceOptions) -> None:
        super().__init__(inputs, options)
        network, piece = find_piece(options)
        self._forward = copy_part(self, network, piece)
        self._reads = len(piece.reads)
        self._first = piece is next(iter(network.parts.values()))

    def piece(self, *streams: Tensor) -> Streams:
        """Return the piece's values; the network's first one reads one channel as grey, and resizes images.

        Of the two streams of a dual residual block, others read the first.
        """
        read = map(self._image, streams) if self._first else streams[: self._reads]
        return self._forward(self, *read)

    def _image(self, image: Tensor) -> Tensor:
        if image.shape[1] == 1:
            image = image.expand(-1, _COLOURS, -1, -1)
        sides = self.options.sides
        if image.shape[2:] == sides:
            return image
        return functional.interpolate(image, sides, mode="bilinear", antialias=True)


class NetworkPiece(Piece, Buffered):
    """A residual block, or a layer with what follows it."""

    def forward(self, *streams: Tensor) -> Streams:
        """Return what the next piece reads."""
        return self.piece(*streams)


class NetworkHead(Piece, Head):
    """The last piece."""

    def forward(self, *streams: Tensor) -> Streams:
        """Return the logits [n, classes]."""
        return self.piece(*streams)
