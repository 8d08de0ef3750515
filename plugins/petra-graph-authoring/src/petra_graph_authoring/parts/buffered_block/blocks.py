from petra_graph.blocks import Buffered
from torch import nn


class ImagePatches(Buffered):
    """Images [n, c, h, w] to two streams [n, channels, h / side, w / side]."""

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.patches = nn.Conv2d(inputs[0][0], 2 * options.channels, options.side, stride=options.side)

    def forward(self, image):
        return self.patches(image).chunk(2, dim=1)
