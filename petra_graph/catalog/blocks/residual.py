"""Residual blocks; every convolution has a bias, as in the paper's networks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from petra_graph.blocks import AdditiveCoupling, Buffered, Shape, Streams
from petra_graph.catalog.blocks.declared_blocks import (
    BasicOptions,
    BottleneckOptions,
    RevBasicOptions,
    RevBottleneckOptions,
    RevMlpOptions,
)


def conv_norm(inputs: int, outputs: int, *, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution, padded to keep the size at stride 1, and its batch normalisation."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2), nn.BatchNorm2d(outputs)
    )


def conv_norm_relu(inputs: int, outputs: int, *, kernel: int, stride: int = 1) -> nn.Sequential:
    return conv_norm(inputs, outputs, kernel=kernel, stride=stride).append(nn.ReLU(inplace=True))


_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}


class RevBasic(AdditiveCoupling):
    """Streams [n, c, h, w]; F is conv3x3-BN-ReLU twice."""

    Options = RevBasicOptions
    draws = False

    def __init__(self, inputs: Sequence[Shape], options: RevBasicOptions) -> None:
        super().__init__(inputs, options)
        width = inputs[0][0]
        self.first = conv_norm_relu(width, width, kernel=3)
        self.second = conv_norm_relu(width, width, kernel=3)
        self.dropout = nn.Dropout(options.dropout) if options.dropout else nn.Identity()

    def residual(self, x: Tensor) -> Tensor:
        """Return F(x)."""
        value: Tensor = self.dropout(self.second(self.first(x)))
        return value


class RevBottleneck(AdditiveCoupling):
    """Streams [n, c, h, w]; F is conv1x1-BN-ReLU, conv3x3-BN-ReLU, conv1x1-BN-ReLU."""

    Options = RevBottleneckOptions
    draws = False

    def __init__(self, inputs: Sequence[Shape], options: RevBottleneckOptions) -> None:
        super().__init__(inputs, options)
        width, hidden = inputs[0][0], options.hidden
        self.reduce = conv_norm_relu(width, hidden, kernel=1)
        self.spatial = conv_norm_relu(hidden, hidden, kernel=3)
        self.expand = conv_norm_relu(hidden, width, kernel=1)
        self.dropout = nn.Dropout(options.dropout) if options.dropout else nn.Identity()

    def residual(self, x: Tensor) -> Tensor:
        """Return F(x)."""
        value: Tensor = self.dropout(self.expand(self.spatial(self.reduce(x))))
        return value


class RevMlp(AdditiveCoupling):
    """Streams [n, ..., features]; F is linear, activation, dropout, linear."""

    Options = RevMlpOptions
    draws = False

    def __init__(self, inputs: Sequence[Shape], options: RevMlpOptions) -> None:
        super().__init__(inputs, options)
        features = inputs[0][-1]
        self.function = nn.Sequential(
            nn.Linear(features, options.hidden),
            _ACTIVATIONS[options.activation](),
            nn.Dropout(options.dropout) if options.dropout else nn.Identity(),
            nn.Linear(options.hidden, features),
        )

    def residual(self, x: Tensor) -> Tensor:
        """Return F(x)."""
        value: Tensor = self.function(x)
        return value


class DownBasic(Buffered):
    """Streams [n, c, h, w] to streams [n, channels, h / stride, w / stride].

    The first output is F(x) + BN(conv1x1(t)), the second the first half of F, as in the paper's networks.
    """

    Options = BasicOptions
    draws = False
    streams = 2

    def __init__(self, inputs: Sequence[Shape], options: BasicOptions) -> None:
        super().__init__(inputs, options)
        (x_width, *_), (t_width, *_) = inputs
        width = options.channels
        self.first = conv_norm_relu(x_width, width, kernel=3, stride=options.stride)
        self.second = conv_norm_relu(width, width, kernel=3)
        self.shortcut = conv_norm(t_width, width, kernel=1, stride=options.stride)

    def forward(self, x: Tensor, t: Tensor) -> Streams:  # type: ignore[override]
        """Return (F(x) + shortcut(t), first half of F)."""
        half = self.first(x)
        return self.second(half) + self.shortcut(t), half


class DownBottleneck(Buffered):
    """Streams [n, c, h, w] to streams [n, channels, h / stride, w / stride].

    The first output is F(x) + BN(conv1x1(t)), the second BN(conv1x1(x)), as in the paper's networks.
    """

    Options = BottleneckOptions
    draws = False
    streams = 2

    def __init__(self, inputs: Sequence[Shape], options: BottleneckOptions) -> None:
        super().__init__(inputs, options)
        (x_width, *_), (t_width, *_) = inputs
        width, hidden, stride = options.channels, options.hidden, options.stride
        self.reduce = conv_norm_relu(x_width, hidden, kernel=1)
        self.spatial = conv_norm_relu(hidden, hidden, kernel=3, stride=stride)
        self.expand = conv_norm_relu(hidden, width, kernel=1)
        self.shortcut_t = conv_norm(t_width, width, kernel=1, stride=stride)
        self.shortcut_x = conv_norm(x_width, width, kernel=1, stride=stride)

    def forward(self, x: Tensor, t: Tensor) -> Streams:  # type: ignore[override]
        """Return (F(x) + shortcut(t), shortcut(x))."""
        return self.expand(self.spatial(self.reduce(x))) + self.shortcut_t(t), self.shortcut_x(x)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    same = inputs == outputs and stride == 1
    return nn.Identity() if same else conv_norm(inputs, outputs, kernel=1, stride=stride)


class ResBasic(Buffered):
    """One stream [n, c, h, w] to one [n, channels, h / stride, w / stride]."""

    Options = BasicOptions
    draws = False
    streams = 1

    def __init__(self, inputs: Sequence[Shape], options: BasicOptions) -> None:
        super().__init__(inputs, options)
        width = options.channels
        self.first = conv_norm_relu(inputs[0][0], width, kernel=3, stride=options.stride)
        self.second = conv_norm(width, width, kernel=3)
        self.shortcut = _shortcut(inputs[0][0], width, options.stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Streams:  # type: ignore[override]
        return (self.relu(self.second(self.first(x)) + self.shortcut(x)),)


class ResBottleneck(Buffered):
    """One stream [n, c, h, w] to one [n, channels, h / stride, w / stride]."""

    Options = BottleneckOptions
    draws = False
    streams = 1

    def __init__(self, inputs: Sequence[Shape], options: BottleneckOptions) -> None:
        super().__init__(inputs, options)
        width, hidden = options.channels, options.hidden
        self.reduce = conv_norm_relu(inputs[0][0], hidden, kernel=1)
        self.spatial = conv_norm_relu(hidden, hidden, kernel=3, stride=options.stride)
        self.expand = conv_norm(hidden, width, kernel=1)
        self.shortcut = _shortcut(inputs[0][0], width, options.stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Streams:  # type: ignore[override]
        return (self.relu(self.expand(self.spatial(self.reduce(x))) + self.shortcut(x)),)
