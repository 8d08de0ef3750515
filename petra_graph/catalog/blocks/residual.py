"""Residual blocks; every convolution has a bias, as in the paper's networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from petra_graph.blocks import AdditiveCoupling, Buffered, Shape, Streams
from petra_graph.plugins import AtLeast, LessThan

Channels = Annotated[int, "channels of each output stream", AtLeast(1)]
Hidden = Annotated[int, "channels of the 3x3 convolution", AtLeast(1)]
Stride = Annotated[int, "stride of the first 3x3 convolution, pixels", AtLeast(1)]
Dropout = Annotated[float, "probability of dropping an element of F", AtLeast(0), LessThan(1)]
_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}


class ConvNorm(nn.Sequential):
    """A convolution, batch normalisation and perhaps ReLU in place, with the state and the bits of `nn.Sequential`.

    Torch's functions are called directly: for small tensors, what `nn.Module` does around three of them takes as long as they do.
    """

    draws = False

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(norm(conv(x))), or norm(conv(x))."""
        conv, norm, *relu = cast(Any, self._modules).values()
        as_made = type(conv) is nn.Conv2d and type(norm) is nn.BatchNorm2d and norm.training
        # Whoever hooks a layer, or replaces it, finds it called as a module.
        if not as_made or torch.compiler.is_compiling() or any(map(_is_hooked, (conv, norm, *relu))):
            return cast(Tensor, super().forward(x))  # type: ignore[no-untyped-call]
        x = functional.conv2d(x, conv.weight, conv.bias, conv.stride, conv.padding)
        mean = variance = None
        if norm.track_running_stats:  # not in a forward whose statistics are frozen
            mean, variance = norm.running_mean, norm.running_var
            norm.num_batches_tracked.add_(1)
        x = functional.batch_norm(x, mean, variance, norm.weight, norm.bias, True, norm.momentum, norm.eps)
        return torch.relu_(x) if relu else x


def _is_hooked(module: nn.Module) -> bool:
    own = vars(module)
    return "forward" in own or any(map(own.__getitem__, _HOOKS))


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def conv_norm(inputs: int, outputs: int, *, kernel: int, stride: int = 1) -> ConvNorm:
    """Return a convolution, padded to keep the size at stride 1, and its batch normalisation."""
    return ConvNorm(nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2), nn.BatchNorm2d(outputs))


def conv_norm_relu(inputs: int, outputs: int, *, kernel: int, stride: int = 1) -> ConvNorm:
    made = conv_norm(inputs, outputs, kernel=kernel, stride=stride)
    made.append(nn.ReLU(inplace=True))
    return made


def _dropped(rate: float) -> nn.Module:
    return nn.Dropout(rate) if rate else nn.Identity()


class RevBasic(AdditiveCoupling):
    """RevNet's reversible basic block: additive coupling, two 3x3 convolutions.

    Streams [n, c, h, w]; F is conv3x3-BN-ReLU twice.
    """

    draws = False

    def __init__(self, inputs: Sequence[Shape], *, dropout: Dropout = 0.0) -> None:
        super().__init__(inputs)
        width = inputs[0][0]
        self.first = conv_norm_relu(width, width, kernel=3)
        self.second = conv_norm_relu(width, width, kernel=3)
        self.dropout = _dropped(dropout)

    def residual(self, x: Tensor) -> Tensor:
        """Return F(x)."""
        value: Tensor = self.dropout(self.second(self.first(x)))
        return value


class RevBottleneck(AdditiveCoupling):
    """RevNet's reversible bottleneck block: additive coupling, 1x1, 3x3 and 1x1 convolutions.

    Streams [n, c, h, w]; F is conv1x1-BN-ReLU, conv3x3-BN-ReLU, conv1x1-BN-ReLU.
    """

    draws = False

    def __init__(self, inputs: Sequence[Shape], *, hidden: Hidden, dropout: Dropout = 0.0) -> None:
        super().__init__(inputs)
        width = inputs[0][0]
        self.reduce = conv_norm_relu(width, hidden, kernel=1)
        self.spatial = conv_norm_relu(hidden, hidden, kernel=3)
        self.expand = conv_norm_relu(hidden, width, kernel=1)
        self.dropout = _dropped(dropout)

    def residual(self, x: Tensor) -> Tensor:
        """Return F(x)."""
        value: Tensor = self.dropout(self.expand(self.spatial(self.reduce(x))))
        return value


class RevMlp(AdditiveCoupling):
    """Reversible multi-layer perceptron block: additive coupling, one hidden layer.

    Streams [n, ..., features]; F is linear, activation, dropout, linear.
    """

    draws = False

    def __init__(
        self,
        inputs: Sequence[Shape],
        *,
        hidden: Annotated[int, "features of the hidden layer", AtLeast(1)],
        activation: Literal["relu", "tanh", "gelu"] = "relu",
        dropout: Annotated[float, "probability of dropping a hidden feature", AtLeast(0), LessThan(1)] = 0.0,
    ) -> None:
        super().__init__(inputs)
        features = inputs[0][-1]
        self.function = nn.Sequential(
            nn.Linear(features, hidden),
            _ACTIVATIONS[activation](),
            _dropped(dropout),
            nn.Linear(hidden, features),
        )

    def residual(self, x: Tensor) -> Tensor:
        """Return F(x)."""
        value: Tensor = self.function(x)
        return value


class DownBasic(Buffered):
    """RevNet's downsampling basic block, which changes both streams' shapes.

    Streams [n, c, h, w] to streams [n, channels, h / stride, w / stride]. The first output is F(x) + BN(conv1x1(t)), the second the first
    half of F, as in the paper's networks.
    """

    draws = False
    streams = 2

    def __init__(self, inputs: Sequence[Shape], *, channels: Channels, stride: Stride = 1) -> None:
        super().__init__(inputs)
        (x_width, *_), (t_width, *_) = inputs
        self.first = conv_norm_relu(x_width, channels, kernel=3, stride=stride)
        self.second = conv_norm_relu(channels, channels, kernel=3)
        self.shortcut = conv_norm(t_width, channels, kernel=1, stride=stride)

    def forward(self, x: Tensor, t: Tensor) -> Streams:  # type: ignore[override]
        """Return (F(x) + shortcut(t), first half of F)."""
        half = self.first(x)
        return self.second(half) + self.shortcut(t), half


class DownBottleneck(Buffered):
    """RevNet's downsampling bottleneck block, which changes both streams' shapes.

    Streams [n, c, h, w] to streams [n, channels, h / stride, w / stride]. The first output is F(x) + BN(conv1x1(t)), the second
    BN(conv1x1(x)), as in the paper's networks.
    """

    draws = False
    streams = 2

    def __init__(self, inputs: Sequence[Shape], *, channels: Channels, hidden: Hidden, stride: Stride = 1) -> None:
        super().__init__(inputs)
        (x_width, *_), (t_width, *_) = inputs
        self.reduce = conv_norm_relu(x_width, hidden, kernel=1)
        self.spatial = conv_norm_relu(hidden, hidden, kernel=3, stride=stride)
        self.expand = conv_norm_relu(hidden, channels, kernel=1)
        self.shortcut_t = conv_norm(t_width, channels, kernel=1, stride=stride)
        self.shortcut_x = conv_norm(x_width, channels, kernel=1, stride=stride)

    def forward(self, x: Tensor, t: Tensor) -> Streams:  # type: ignore[override]
        """Return (F(x) + shortcut(t), shortcut(x))."""
        return self.expand(self.spatial(self.reduce(x))) + self.shortcut_t(t), self.shortcut_x(x)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    same = inputs == outputs and stride == 1
    return nn.Identity() if same else conv_norm(inputs, outputs, kernel=1, stride=stride)


class ResBasic(Buffered):
    """ResNet's basic block: two 3x3 convolutions and a shortcut.

    One stream [n, c, h, w] to one [n, channels, h / stride, w / stride].
    """

    draws = False
    streams = 1

    def __init__(self, inputs: Sequence[Shape], *, channels: Channels, stride: Stride = 1) -> None:
        super().__init__(inputs)
        self.first = conv_norm_relu(inputs[0][0], channels, kernel=3, stride=stride)
        self.second = conv_norm(channels, channels, kernel=3)
        self.shortcut = _shortcut(inputs[0][0], channels, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Streams:  # type: ignore[override]
        return (self.relu(self.second(self.first(x)) + self.shortcut(x)),)


class ResBottleneck(Buffered):
    """ResNet's bottleneck block: 1x1, 3x3 and 1x1 convolutions and a shortcut.

    One stream [n, c, h, w] to one [n, channels, h / stride, w / stride].
    """

    draws = False
    streams = 1

    def __init__(self, inputs: Sequence[Shape], *, channels: Channels, hidden: Hidden, stride: Stride = 1) -> None:
        super().__init__(inputs)
        self.reduce = conv_norm_relu(inputs[0][0], hidden, kernel=1)
        self.spatial = conv_norm_relu(hidden, hidden, kernel=3, stride=stride)
        self.expand = conv_norm(hidden, channels, kernel=1)
        self.shortcut = _shortcut(inputs[0][0], channels, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Streams:  # type: ignore[override]
        return (self.relu(self.expand(self.spatial(self.reduce(x))) + self.shortcut(x)),)
