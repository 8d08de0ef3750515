"""What ResNets and RevNets share: groups of blocks, their widths, and the stem.

The width of a group is 64, 128, 256, 512 times the width multiplier; a bottleneck's output is four times its hidden
width (He et al. 2016, table 1, https://arxiv.org/abs/1512.03385).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from attrs import frozen
from attrs.validators import gt

from petra_graph.errors import Problem, SpecError, shown
from petra_graph.registry.contracts import DataFacts, option

BASIC_DEPTHS = (18, 34)
BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
BASE_WIDTH = 64
BOTTLENECK_EXPANSION = 4
IMAGE_DIMENSIONS = 3
IMAGENET_SIDE = 64
"""From this side on, images get the stem of ImageNet."""


@frozen(kw_only=True)
class NetworkOptions:
    """What every residual network can be told."""

    width: float = option("multiplier of every layer's channels", default=1.0, validator=gt(0))
    classes: int | None = option("outputs of the head; default: the data set's classes", default=None)
    stem: Literal["auto", "cifar", "imagenet"] = option(
        'a 3x3 convolution ("cifar"), or 7x7 at stride 2 with 2x2 max-pooling ("imagenet"); "auto": by image size',
        default="auto",
    )


@frozen(kw_only=True)
class Place:
    """One residual block's place in the network."""

    name: str
    channels: int
    hidden: int
    stride: int
    changes_shape: bool


def scaled(channels: int, width: float) -> int:
    """Return `channels` times the width multiplier, at least 1."""
    return max(1, round(channels * width))


def block_groups(depth: int, width: float) -> Iterator[Place]:
    """Yield the blocks of a network of this depth, in order."""
    expansion = 1 if depth in BASIC_DEPTHS else BOTTLENECK_EXPANSION
    before = scaled(BASE_WIDTH, width)
    for group, count in enumerate(BLOCKS[depth]):
        hidden = scaled(BASE_WIDTH * 2**group, width)
        channels = expansion * hidden
        for index in range(count):
            stride = 2 if group > 0 and index == 0 else 1
            yield Place(
                name=f"layer{group + 1}.{index}",
                channels=channels,
                hidden=hidden,
                stride=stride,
                changes_shape=stride != 1 or channels != before,
            )
            before = channels


def stem_options(options: NetworkOptions, facts: DataFacts) -> dict[str, Any]:
    """Return the options of the `conv-stem` block for this data set's images.

    Raises:
        SpecError: its samples are no images.
    """
    if len(facts.shape) != IMAGE_DIMENSIONS:
        raise SpecError(
            Problem(
                message=f"the network reads images, but the data set's samples have shape {shown(facts.shape)}",
                hint="choose a data set of images, [channels, height, width], or list nodes that read these samples",
            )
        )
    channels = scaled(BASE_WIDTH, options.width)
    large = options.stem == "imagenet" or (options.stem == "auto" and min(facts.shape[1:]) >= IMAGENET_SIDE)
    return {"channels": channels, "kernel": 7, "stride": 2, "pool": 2} if large else {"channels": channels}


def class_count(options: NetworkOptions, facts: DataFacts) -> int:
    """Return the head's outputs.

    Raises:
        SpecError: neither the options nor the data set's declaration know the number of classes.
    """
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
