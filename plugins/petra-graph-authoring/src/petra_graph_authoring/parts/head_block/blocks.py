from petra_graph.blocks import Head
from torch import nn


class MeanHead(Head):
    """Two streams [n, c, h, w] to [n, outputs]."""

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = nn.Linear(inputs[0][0], options.outputs)

    def forward(self, x, t):
        return self.linear((x + t).mean(dim=(2, 3)))
