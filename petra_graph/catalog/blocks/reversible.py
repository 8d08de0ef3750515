"""First-party reversible blocks: each is a residual function, the coupling is inherited."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from petra_graph.blocks import AdditiveCoupling, Shape
from petra_graph.catalog.blocks.declared import RevBasicOptions, RevBottleneckOptions, RevMlpOptions
from petra_graph.catalog.blocks.layers import conv_norm_relu

_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}


class RevBasic(AdditiveCoupling):
    """Streams [n, c, h, w]; F is conv3x3-BN-ReLU twice."""

    Options = RevBasicOptions

    def __init__(self, inputs: Sequence[Shape], options: RevBasicOptions) -> None:
        super().__init__(inputs, options)
        width = inputs[0][0]
        self.first = conv_norm_relu(width, width, kernel=3)
        self.second = conv_norm_relu(width, width, kernel=3)
        self.dropout = nn.Dropout(options.dropout)

    def residual(self, x: Tensor) -> Tensor:
        """Return F(x)."""
        value: Tensor = self.dropout(self.second(self.first(x)))
        return value


class RevBottleneck(AdditiveCoupling):
    """Streams [n, c, h, w]; F is conv1x1-BN-ReLU, conv3x3-BN-ReLU, conv1x1-BN-ReLU."""

    Options = RevBottleneckOptions

    def __init__(self, inputs: Sequence[Shape], options: RevBottleneckOptions) -> None:
        super().__init__(inputs, options)
        width, hidden = inputs[0][0], options.hidden
        self.reduce = conv_norm_relu(width, hidden, kernel=1)
        self.spatial = conv_norm_relu(hidden, hidden, kernel=3)
        self.expand = conv_norm_relu(hidden, width, kernel=1)
        self.dropout = nn.Dropout(options.dropout)

    def residual(self, x: Tensor) -> Tensor:
        """Return F(x)."""
        value: Tensor = self.dropout(self.expand(self.spatial(self.reduce(x))))
        return value


class RevMlp(AdditiveCoupling):
    """Streams [n, ..., features]; F is linear, activation, dropout, linear."""

    Options = RevMlpOptions

    def __init__(self, inputs: Sequence[Shape], options: RevMlpOptions) -> None:
        super().__init__(inputs, options)
        features = inputs[0][-1]
        self.function = nn.Sequential(
            nn.Linear(features, options.hidden),
            _ACTIVATIONS[options.activation](),
            nn.Dropout(options.dropout),
            nn.Linear(options.hidden, features),
        )

    def residual(self, x: Tensor) -> Tensor:
        """Return F(x)."""
        value: Tensor = self.function(x)
        return value
