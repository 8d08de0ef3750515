"""Networks by name: ResNets and RevNets as the paper trains them.

RevNets are ResNets whose residual blocks couple two streams.

The paper's stages, one node each (S stem, R reversible, D downsampling and buffered, H head):

    RevNet18  S RR DR DR DR H
    RevNet34  S RRR DRRR DRRRRR DRR H
    RevNet50  S DRR DRRR DRRRRR DRR H        RevNet101: 23 blocks in the third group

Each stream has the width of the ResNet, which doubles the channels in total; the number of parameters is about the
same, since the residual function reads one stream (PETRA section 4.1, "Model adaptations"; Gomez et al. 2017).

The width of a group of blocks is 64, 128, 256, 512 times the width multiplier; a bottleneck's output is four times its
hidden width (He et al. 2016, table 1, https://arxiv.org/abs/1512.03385).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from attrs import frozen

from petra_graph.errors import Problem, SpecError, shown
from petra_graph.plugins import ArchitectureDeclaration, AtLeast, DataFacts, GreaterThan, LessThan, NodeSpec, option

Depth = Literal[18, 34, 50, 101]
BASIC_DEPTHS = (18, 34)
BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
BASE_WIDTH = 64
BOTTLENECK_EXPANSION = 4
IMAGE_DIMENSIONS = 3
IMAGENET_SIDE = 64
"""The least height and width of images that get the stem of ImageNet."""


@frozen(kw_only=True)
class NetworkOptions:
    """The options of every residual network."""

    width: float = option("multiplier of every layer's channels", default=1.0, validator=GreaterThan(0))
    classes: int | None = option("outputs of the head; default: the data set's classes", default=None)
    stem: Literal["auto", "cifar", "imagenet"] = option(
        'a 3x3 convolution ("cifar"), or 7x7 at stride 2 with 2x2 max-pooling ("imagenet"); "auto": by image size',
        default="auto",
    )


@frozen(kw_only=True)
class RevNetOptions(NetworkOptions):
    """Depth, width, classes, stem and dropout of a RevNet."""

    depth: Depth = option("depth of the ResNet that it corresponds to")
    dropout: float = option(
        "dropout probability inside reversible blocks", default=0.0, validator=[AtLeast(0), LessThan(1)]
    )


@frozen(kw_only=True)
class ResNetOptions(NetworkOptions):
    """Depth, width, classes and stem of a ResNet."""

    depth: Depth = option("number of weighted layers")


def nodes(options: RevNetOptions | ResNetOptions, facts: DataFacts) -> tuple[NodeSpec, ...]:
    """Return the nodes of a network for these images: the stem, the residual blocks and the head.

    Raises:
        SpecError: the data set's samples are not images, or the number of classes is unknown.
    """
    stem = {**_stem_options(options, facts), "streams": 1 if isinstance(options, ResNetOptions) else 2}
    return (
        NodeSpec(name="stem", block="conv-stem", options=stem),
        *_residual_nodes(options),
        NodeSpec(name="head", block="pool-linear", options={"outputs": _class_count(options, facts)}),
    )


def _residual_nodes(options: RevNetOptions | ResNetOptions) -> Iterator[NodeSpec]:
    form = "basic" if options.depth in BASIC_DEPTHS else "bottleneck"
    before = _scaled(BASE_WIDTH, options.width)
    for group, count in enumerate(BLOCKS[options.depth]):
        width = _scaled(BASE_WIDTH * 2**group, options.width)
        channels = width if form == "basic" else BOTTLENECK_EXPANSION * width
        hidden = {} if form == "basic" else {"hidden": width}
        for index in range(count):
            name = f"layer{group + 1}.{index}"
            stride = 2 if group > 0 and index == 0 else 1
            shape = {"channels": channels, **hidden, "stride": stride}
            if isinstance(options, ResNetOptions):
                yield NodeSpec(name=name, block=f"res-{form}", options=shape)
            elif stride != 1 or channels != before:
                yield NodeSpec(name=name, block=f"down-{form}", kind="buffered", options=shape)
            else:
                dropout = {"dropout": options.dropout} if options.dropout else {}
                yield NodeSpec(name=name, block=f"rev-{form}", kind="reversible", options={**hidden, **dropout})
            before = channels


def _scaled(channels: int, width: float) -> int:
    return max(1, round(channels * width))


def _stem_options(options: NetworkOptions, facts: DataFacts) -> dict[str, Any]:
    if len(facts.shape) != IMAGE_DIMENSIONS:
        raise SpecError(
            f"the network reads images, but the data set's samples have shape {shown(facts.shape)}",
            "choose a data set of images, [channels, height, width], or list nodes that read these samples",
        )
    channels = _scaled(BASE_WIDTH, options.width)
    large = options.stem == "imagenet" or (options.stem == "auto" and min(facts.shape[1:]) >= IMAGENET_SIDE)
    return {"channels": channels, "kernel": 7, "stride": 2, "pool": 2} if large else {"channels": channels}


def _class_count(options: NetworkOptions, facts: DataFacts) -> int:
    classes = options.classes if options.classes is not None else facts.classes
    if classes is None:
        raise SpecError(
            Problem(
                message="the number of classes is unknown: the data set does not declare it",
                hint="set architecture.options.classes",
                path=("classes",),
            )
        )
    return classes


REVNET = ArchitectureDeclaration(
    summary="RevNet 18, 34, 50 or 101, for images of any size.", options=RevNetOptions, build=f"{__name__}:nodes"
)
RESNET = ArchitectureDeclaration(
    summary="ResNet 18, 34, 50 or 101, for images of any size; no node is reversible.",
    options=ResNetOptions,
    build=f"{__name__}:nodes",
)
