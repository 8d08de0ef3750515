"""Pieces of torchvision's networks as nodes.

A block's parameters have the names that they have in torchvision's `state_dict`, as in `layer1.0.conv1.weight`, so that a
file of torchvision's weights fits them.
"""

from __future__ import annotations

from collections.abc import Sequence

from petra_graph_modules.cutting import copy_part
from torch import Tensor

from petra_graph.blocks import Block, Buffered, Head, Shape, Streams
from petra_graph_torchvision.declared import PieceOptions
from petra_graph_torchvision.networks import as_read, find_piece, whole_network


class Piece(Block):
    """What all pieces share: the operations between two places where the network is cut."""

    Options = PieceOptions

    def __init__(self, inputs: Sequence[Shape], options: PieceOptions) -> None:
        super().__init__(inputs, options)
        network, piece = find_piece(options)
        self._forward = copy_part(self, network, piece)
        self.of_network = whole_network(network, options.sides)
        self._reads = len(piece.reads)
        self._first = piece is next(iter(network.parts.values()))

    def piece(self, *streams: Tensor) -> Streams:
        """Return the piece's values; the network's first one reads one channel as grey, and resizes images.

        Of the two streams of a dual residual block, others read the first.
        """
        read = [as_read(streams[0], self.options.sides)] if self._first else streams[: self._reads]
        return self._forward(self, *read)


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
