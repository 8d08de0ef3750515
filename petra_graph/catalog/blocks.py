"""The blocks of ResNets, RevNets and perceptrons; every convolution has a bias, as in the paper's networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import prod
from typing import Annotated, Any, Literal, cast

import torch
from torch import Tensor, nn

from petra_graph.blocks import AdditiveCoupling, Buffered, Head, Shape, Streams
from petra_graph.plugins import AtLeast, Code, LessThan, named_code

Channels = Annotated[int, "channels of each output stream", AtLeast(1)]
Features = Annotated[int, "features of each output stream", AtLeast(1)]
Hidden = Annotated[int, "channels of the 3x3 convolution", AtLeast(1)]
Stride = Annotated[int, "stride of the first 3x3 convolution, pixels", AtLeast(1)]
Dropout = Annotated[float, "probability of dropping an element of F", AtLeast(0), LessThan(1)]
Outputs = Annotated[int, "outputs: the number of classes", AtLeast(1)]
PerInput = Annotated[int, "of each input and of the output", AtLeast(1)]
Split = Annotated[Literal[1, 2], "output streams: 2 for reversible networks, 1 for others"]
Maker = Annotated[Code, 'class or function that makes the module, as "my_file:make_layer"']
Arguments = Annotated[Mapping[str, Any], "arguments that it is called with, by name"]
NO_ARGUMENTS: Mapping[str, Any] = {}
_AS_MADE = (nn.Conv2d, nn.BatchNorm2d, nn.ReLU)
_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}


class ConvNorm(nn.Sequential):
    """A convolution, batch normalisation and perhaps ReLU in place, with the state and the bits of `nn.Sequential`.

    Torch's functions are called directly: for small tensors, what `nn.Module` does around three of them takes as long as they do.
    """

    draws = False

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(norm(conv(x))), or norm(conv(x))."""
        layers: Any = tuple(self._modules.values())
        # Whoever replaces a layer, adds one or hooks one finds all of them called as modules, and so does a tracer, whose x is no tensor.
        direct = not torch.compiler.is_compiling() and isinstance(x, Tensor) and 1 < len(layers) <= len(_AS_MADE)
        for layer, kind in zip(layers, _AS_MADE, strict=False) if direct else ():
            own = layer.__dict__
            changed = type(layer) is not kind or "forward" in own or own["_forward_hooks"] or own["_forward_pre_hooks"]
            if changed or own["_backward_hooks"] or own["_backward_pre_hooks"]:
                direct = False
        if not direct or not layers[1].training or layers[1].momentum is None:
            return cast(Tensor, super().forward(x))  # type: ignore[no-untyped-call]
        conv, norm, *relu = layers
        # Their tables, since an attribute takes a module as long as some additions.
        of_conv, of_norm, statistics = conv._parameters, norm._parameters, norm._buffers  # noqa: SLF001
        x = conv._conv_forward(x, of_conv["weight"], of_conv["bias"])  # noqa: SLF001
        if x.numel() == x.shape[1]:  # one value a channel has no variance, which the module refuses
            return cast(Tensor, norm(x))
        mean = variance = None
        if norm.track_running_stats:  # not in a forward whose statistics are frozen
            mean, variance = statistics["running_mean"], statistics["running_var"]
            statistics["num_batches_tracked"].add_(1)
        weight, bias, cudnn = of_norm["weight"], of_norm["bias"], torch._C._get_cudnn_enabled()  # noqa: SLF001
        x = torch.batch_norm(x, weight, bias, mean, variance, True, norm.momentum, norm.eps, cudnn)
        return torch.relu_(x) if relu else x


def conv_layer(inputs: int, outputs: int, *, kernel: int, stride: int = 1, relu: bool = True) -> ConvNorm:
    """Return a convolution, padded to keep the size at stride 1, its batch normalisation, and perhaps ReLU."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2)
    return ConvNorm(conv, nn.BatchNorm2d(outputs), *([nn.ReLU(inplace=True)] if relu else []))


def dropped(rate: float) -> nn.Module:
    return nn.Dropout(rate) if rate else nn.Identity()


class RevBasic(AdditiveCoupling):
    """RevNet's reversible basic block: additive coupling, two 3x3 convolutions."""

    def __init__(self, inputs: Sequence[Shape], *, dropout: Dropout = 0.0) -> None:
        super().__init__(inputs)
        width = inputs[0][0]
        self.first = conv_layer(width, width, kernel=3)
        self.second = conv_layer(width, width, kernel=3)
        self.dropout = dropped(dropout)

    def residual(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.dropout(self.second(self.first(x))))


class RevBottleneck(AdditiveCoupling):
    """RevNet's reversible bottleneck block: additive coupling, 1x1, 3x3 and 1x1 convolutions."""

    def __init__(self, inputs: Sequence[Shape], *, hidden: Hidden, dropout: Dropout = 0.0) -> None:
        super().__init__(inputs)
        width = inputs[0][0]
        self.reduce = conv_layer(width, hidden, kernel=1)
        self.spatial = conv_layer(hidden, hidden, kernel=3)
        self.expand = conv_layer(hidden, width, kernel=1)
        self.dropout = dropped(dropout)

    def residual(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.dropout(self.expand(self.spatial(self.reduce(x)))))


class RevMlp(AdditiveCoupling):
    """Reversible multi-layer perceptron block: additive coupling, one hidden layer."""

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
        first, last = nn.Linear(features, hidden), nn.Linear(hidden, features)
        self.function = nn.Sequential(first, _ACTIVATIONS[activation](), dropped(dropout), last)

    def residual(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.function(x))


class DownBasic(Buffered):
    """RevNet's downsampling basic block: F(x) + BN(conv1x1(t)), and the first half of F, as in the paper's networks."""

    streams = 2

    def __init__(self, inputs: Sequence[Shape], *, channels: Channels, stride: Stride = 1) -> None:
        super().__init__(inputs)
        (x_width, *_), (t_width, *_) = inputs
        self.first = conv_layer(x_width, channels, kernel=3, stride=stride)
        self.second = conv_layer(channels, channels, kernel=3)
        self.shortcut = conv_layer(t_width, channels, kernel=1, stride=stride, relu=False)

    def forward(self, x: Tensor, t: Tensor) -> Streams:  # type: ignore[override]
        half = self.first(x)
        return self.second(half) + self.shortcut(t), half


class DownBottleneck(Buffered):
    """RevNet's downsampling bottleneck block: F(x) + BN(conv1x1(t)), and BN(conv1x1(x)), as in the paper's networks."""

    streams = 2

    def __init__(self, inputs: Sequence[Shape], *, channels: Channels, hidden: Hidden, stride: Stride = 1) -> None:
        super().__init__(inputs)
        (x_width, *_), (t_width, *_) = inputs
        self.reduce = conv_layer(x_width, hidden, kernel=1)
        self.spatial = conv_layer(hidden, hidden, kernel=3, stride=stride)
        self.expand = conv_layer(hidden, channels, kernel=1)
        self.shortcut_t = conv_layer(t_width, channels, kernel=1, stride=stride, relu=False)
        self.shortcut_x = conv_layer(x_width, channels, kernel=1, stride=stride, relu=False)

    def forward(self, x: Tensor, t: Tensor) -> Streams:  # type: ignore[override]
        return self.expand(self.spatial(self.reduce(x))) + self.shortcut_t(t), self.shortcut_x(x)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    same = inputs == outputs and stride == 1
    return nn.Identity() if same else conv_layer(inputs, outputs, kernel=1, stride=stride, relu=False)


class ResBasic(Buffered):
    """ResNet's basic block: two 3x3 convolutions and a shortcut."""

    streams = 1

    def __init__(self, inputs: Sequence[Shape], *, channels: Channels, stride: Stride = 1) -> None:
        super().__init__(inputs)
        self.first = conv_layer(inputs[0][0], channels, kernel=3, stride=stride)
        self.second = conv_layer(channels, channels, kernel=3, relu=False)
        self.shortcut = _shortcut(inputs[0][0], channels, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Streams:  # type: ignore[override]
        return (self.relu(self.second(self.first(x)) + self.shortcut(x)),)


class ResBottleneck(Buffered):
    """ResNet's bottleneck block: 1x1, 3x3 and 1x1 convolutions and a shortcut."""

    streams = 1

    def __init__(self, inputs: Sequence[Shape], *, channels: Channels, hidden: Hidden, stride: Stride = 1) -> None:
        super().__init__(inputs)
        self.reduce = conv_layer(inputs[0][0], hidden, kernel=1)
        self.spatial = conv_layer(hidden, hidden, kernel=3, stride=stride)
        self.expand = conv_layer(hidden, channels, kernel=1, relu=False)
        self.shortcut = _shortcut(inputs[0][0], channels, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Streams:  # type: ignore[override]
        return (self.relu(self.expand(self.spatial(self.reduce(x))) + self.shortcut(x)),)


class ConvStem(Buffered):
    """Convolution, optional max-pooling, batch normalisation and ReLU, split into streams."""

    streams = 1

    def __init__(
        self,
        inputs: Sequence[Shape],
        *,
        channels: Channels,
        kernel: Annotated[int, "side of the square kernel, pixels", AtLeast(1)] = 3,
        stride: Annotated[int, "stride of the convolution, pixels", AtLeast(1)] = 1,
        pool: Annotated[int, "side and stride of a max-pooling after the convolution; 1 for none", AtLeast(1)] = 1,
        streams: Split = 2,
    ) -> None:
        super().__init__(inputs)
        self.conv = nn.Conv2d(inputs[0][0], streams * channels, kernel, stride=stride, padding=kernel // 2)
        self.pool = nn.MaxPool2d(pool) if pool > 1 else nn.Identity()
        self.norm = nn.BatchNorm2d(streams * channels)
        self.relu = nn.ReLU(inplace=True)
        self.parts = streams

    def forward(self, image: Tensor) -> Streams:  # type: ignore[override]
        joined: Tensor = self.relu(self.norm(self.pool(self.conv(image))))
        return joined.chunk(self.parts, dim=1)


class LinearStem(Buffered):
    """Flatten, linear layer and ReLU, split into streams: samples [n, *shape] to streams [n, features]."""

    streams = 1

    def __init__(self, inputs: Sequence[Shape], *, features: Features, streams: Split = 2) -> None:
        super().__init__(inputs)
        self.linear = nn.Linear(prod(inputs[0]), streams * features)
        self.relu = nn.ReLU(inplace=True)
        self.parts = streams

    def forward(self, sample: Tensor) -> Streams:  # type: ignore[override]
        joined: Tensor = self.relu(self.linear(sample.flatten(1)))
        return joined.chunk(self.parts, dim=1)


class Add(Buffered):
    """Sum of its inputs, stream by stream: with two streams each, (a, b) and (c, d) become (a + c, b + d)."""

    def __init__(self, inputs: Sequence[Shape], *, streams: PerInput = 2) -> None:
        super().__init__(inputs)
        self.parts = streams
        if len(inputs) % streams:
            raise ValueError(f"its inputs carry {len(inputs)} streams, which is not a multiple of streams = {streams}")

    def forward(self, *streams: Tensor) -> Streams:
        return tuple(reduce(torch.add, streams[index :: self.parts]) for index in range(self.parts))


class PoolLinear(Head):
    """Head of a classifier: streams concatenated, averaged over space, one linear layer."""

    def __init__(self, inputs: Sequence[Shape], *, outputs: Outputs) -> None:
        super().__init__(inputs)
        self.linear = nn.Linear(sum(shape[0] for shape in inputs), outputs)

    def forward(self, *streams: Tensor) -> Streams:
        joined = torch.cat(streams, dim=1)
        space = tuple(range(2, joined.dim()))
        return (self.linear(joined.mean(space) if space else joined),)


class Additive(AdditiveCoupling):
    """Additive coupling of any torch.nn.Module as F, whose output has its input's shape."""

    def __init__(self, inputs: Sequence[Shape], *, f: Maker, kwargs: Arguments = NO_ARGUMENTS) -> None:
        super().__init__(inputs)
        self.f = named_code("f", f)(**kwargs)
        if not isinstance(self.f, nn.Module):  # it might draw, and nobody would know
            raise TypeError(f"{f} returned {type(self.f).__name__}, and no torch.nn.Module")

    def residual(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.f(x))


for _block in (
    *(RevBasic, RevBottleneck, RevMlp, Additive, DownBasic, DownBottleneck, ResBasic, ResBottleneck),
    *(ConvStem, LinearStem, Add, PoolLinear),
):
    _block.draws = False  # their own code; what torch's modules in them draw, as dropout does, is known
