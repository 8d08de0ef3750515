"""The blocks that come with the package, as declarations; the module does not import torch."""

from __future__ import annotations

from functools import partial

from attrs import frozen

from petra_graph.plugins import AtLeast, BlockDeclaration, GreaterThan, Kind, LessThan, OneOf, option


@frozen(kw_only=True)
class ConvStemOptions:
    """Convolution, optional max-pooling, batch normalisation and ReLU; the first node of an image network."""

    channels: int = option("channels of each output stream", validator=AtLeast(1))
    kernel: int = option("side of the square kernel", default=3, unit="pixels", validator=AtLeast(1))
    stride: int = option("stride of the convolution", default=1, unit="pixels", validator=AtLeast(1))
    pool: int = option(
        "side and stride of a max-pooling after the convolution; 1 for none", default=1, validator=AtLeast(1)
    )
    streams: int = option("output streams: 2 for reversible networks, 1 for others", default=2, validator=OneOf(1, 2))


@frozen(kw_only=True)
class LinearStemOptions:
    """Flatten, linear layer and ReLU; the first node of a fully connected network."""

    features: int = option("features of each output stream", validator=AtLeast(1))
    streams: int = option("output streams: 2 for reversible networks, 1 for others", default=2, validator=OneOf(1, 2))


@frozen(kw_only=True)
class RevBasicOptions:
    """Residual function of two 3x3 convolutions, each with batch normalisation and ReLU."""

    dropout: float = option("probability of dropping an element of F", default=0.0, validator=[AtLeast(0), LessThan(1)])


@frozen(kw_only=True)
class RevBottleneckOptions:
    """Residual function of 1x1, 3x3 and 1x1 convolutions, each with batch normalisation and ReLU."""

    hidden: int = option("channels of the 3x3 convolution", validator=AtLeast(1))
    dropout: float = option("probability of dropping an element of F", default=0.0, validator=[AtLeast(0), LessThan(1)])


@frozen(kw_only=True)
class RevMlpOptions:
    """Residual function of a hidden layer: linear, activation, dropout, linear."""

    hidden: int = option("features of the hidden layer", validator=AtLeast(1))
    activation: str = option("activation function", default="relu", validator=OneOf("relu", "tanh", "gelu"))
    dropout: float = option(
        "probability of dropping a hidden feature", default=0.0, validator=[AtLeast(0), LessThan(1)]
    )


@frozen(kw_only=True)
class BasicOptions:
    """Two 3x3 convolutions."""

    channels: int = option("channels of each output stream", validator=AtLeast(1))
    stride: int = option("stride of the first convolution", default=1, unit="pixels", validator=AtLeast(1))


@frozen(kw_only=True)
class BottleneckOptions:
    """1x1, 3x3 and 1x1 convolutions."""

    channels: int = option("channels of each output stream", validator=AtLeast(1))
    hidden: int = option("channels of the 3x3 convolution", validator=AtLeast(1))
    stride: int = option("stride of the 3x3 convolution", default=1, unit="pixels", validator=AtLeast(1))


@frozen(kw_only=True)
class AddOptions:
    """The number of streams of each input."""

    streams: int = option("streams of each input and of the output", default=2, validator=AtLeast(1))


@frozen(kw_only=True)
class PoolLinearOptions:
    """Concatenated streams, global average pooling, one linear layer."""

    outputs: int = option("outputs of the linear layer: the number of classes", validator=GreaterThan(0))


def _block(kind: Kind, streams: int | None, code: str, options: type, summary: str) -> BlockDeclaration:
    build = f"petra_graph.catalog.blocks.{code}"
    return BlockDeclaration(kind=kind, streams=streams, build=build, options=options, summary=summary)


_one_stream = partial(_block, "buffered", 1)
_reversible = partial(_block, "reversible", 2)
_downsampling = partial(_block, "buffered", 2)

CONV_STEM = _one_stream(
    "stems_and_heads:ConvStem",
    ConvStemOptions,
    "Convolution, optional max-pooling, batch normalisation and ReLU, split into streams.",
)
LINEAR_STEM = _one_stream(
    "stems_and_heads:LinearStem", LinearStemOptions, "Flatten, linear layer and ReLU, split into streams."
)
REV_BASIC = _reversible(
    "residual:RevBasic", RevBasicOptions, "RevNet's reversible basic block: additive coupling, two 3x3 convolutions."
)
REV_BOTTLENECK = _reversible(
    "residual:RevBottleneck",
    RevBottleneckOptions,
    "RevNet's reversible bottleneck block: additive coupling, 1x1, 3x3 and 1x1 convolutions.",
)
REV_MLP = _reversible(
    "residual:RevMlp", RevMlpOptions, "Reversible multi-layer perceptron block: additive coupling, one hidden layer."
)
DOWN_BASIC = _downsampling(
    "residual:DownBasic", BasicOptions, "RevNet's downsampling basic block, which changes both streams' shapes."
)
DOWN_BOTTLENECK = _downsampling(
    "residual:DownBottleneck",
    BottleneckOptions,
    "RevNet's downsampling bottleneck block, which changes both streams' shapes.",
)
RES_BASIC = _one_stream("residual:ResBasic", BasicOptions, "ResNet's basic block: two 3x3 convolutions and a shortcut.")
RES_BOTTLENECK = _one_stream(
    "residual:ResBottleneck",
    BottleneckOptions,
    "ResNet's bottleneck block: 1x1, 3x3 and 1x1 convolutions and a shortcut.",
)
ADD = _block(
    "buffered",
    None,
    "stems_and_heads:Add",
    AddOptions,
    "Sum of its inputs, stream by stream: where skip edges and branches meet.",
)
POOL_LINEAR = _block(
    "head",
    None,
    "stems_and_heads:PoolLinear",
    PoolLinearOptions,
    "Head of a classifier: streams concatenated, averaged over space, one linear layer.",
)
