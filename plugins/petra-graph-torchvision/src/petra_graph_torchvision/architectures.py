"""torchvision's networks as nodes, and with runs of residual blocks made reversible. Each node is a stage of its own."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from attrs import frozen

from petra_graph.plugins import (
    ArchitectureDeclaration,
    AtLeast,
    DataFacts,
    GreaterThan,
    NodeSpec,
    Problem,
    SpecError,
    option,
)
from petra_graph_torchvision.declared import NetworkOptions
from petra_graph_torchvision.table import nodes

_IMAGE = 3
"""The dimensions of an image: channels, height, width."""
_COLOURS = (1, 3)
"""The numbers of channels that a network can read: one is repeated."""


@frozen(kw_only=True)
class ArchitectureOptions(NetworkOptions):
    """A network by its name in torchvision."""

    classes: int | None = option(
        "outputs of the network; default: the data set's classes", default=None, validator=AtLeast(1)
    )
    resize: int | None = option(
        "side of the square that the first node brings images to, bilinearly; default: images as they are",
        default=None,
        unit="pixels",
        validator=AtLeast(1),
    )


@frozen(kw_only=True)
class Dr2NetOptions(ArchitectureOptions):
    """A network by its name in torchvision, and the coefficients of its reversible blocks.

    Zhao et al. 2024, "Dr2Net", https://arxiv.org/abs/2401.04105, equation 1.
    """

    alpha: float = option("coefficient of the blocks' own residual connections at the start", default=1.0)
    beta: float = option(
        "coefficient of the reversible residual connections at the start", default=0.1, validator=GreaterThan(0)
    )


def torchvision(options: ArchitectureOptions, facts: DataFacts) -> tuple[NodeSpec, ...]:
    """Return the nodes of a network for such images: all buffered but the head.

    Raises:
        SpecError: samples are no images of one or three channels, or the number of classes is unknown.
    """
    common = _common(options, facts)
    return (*[_plain(name, common) for name in _body(options)], _head(options, common))


def dr2net(options: Dr2NetOptions, facts: DataFacts) -> tuple[NodeSpec, ...]:
    """Return the nodes of a network for such images, with consecutive residual blocks reversible.

    A residual block that stands alone stays buffered: as a reversible node it would hand on two streams in place of one, and
    spare none.

    Raises:
        SpecError: as `torchvision`; or no two residual blocks follow one another.
    """
    common = _common(options, facts)
    residual = nodes(options.network)
    coupled = {**common, "alpha": options.alpha, "beta": options.beta}
    made: list[NodeSpec] = []
    reversible = 0
    for adds, run in groupby(_body(options), residual.__getitem__):
        names = list(run)
        if adds and len(names) > 1:
            blocks = ["dual-residual-entry", *["dual-residual"] * (len(names) - 1)]
            made += [_node(*pair, coupled) for pair in zip(names, blocks, strict=True)]
            reversible += len(names)
        else:
            made += [_plain(name, common) for name in names]
    if not reversible:
        message = f"{options.network} has no two residual blocks that follow one another and keep their shape"
        hint = 'use architecture "torchvision", or a network that has: a ResNet, ConvNeXt or ViT'
        raise SpecError(Problem(message=message, hint=hint, path=("network",)))
    return (*made, _head(options, common))


def _common(options: ArchitectureOptions, facts: DataFacts) -> Mapping[str, object]:
    """Return the options that all nodes share."""
    problems = []
    if len(facts.shape) != _IMAGE or facts.shape[0] not in _COLOURS:
        message = f"{options.network} needs images [1 or 3, height, width]; samples are {list(facts.shape)}"
        problems.append(Problem(message=message, hint="use a data set of images"))
    classes = options.classes or facts.classes
    if classes is None:
        message = "the number of classes is unknown: only the data set's files tell it"
        problems.append(Problem(message=message, hint="set classes", path=("classes",)))
    if problems or classes is None:
        raise SpecError(problems)
    sides = [options.resize] * 2 if options.resize else list(facts.shape[1:])
    given = {"arguments": dict(options.arguments)} if options.arguments else {}
    return {"network": options.network, "classes": classes, "sides": sides, **given}


def _body(options: ArchitectureOptions) -> list[str]:
    """Return all nodes but the head."""
    return list(nodes(options.network))[:-1]


def _plain(name: str, common: Mapping[str, object]) -> NodeSpec:
    return _node(name, "torchvision-piece", common)


def _head(options: ArchitectureOptions, common: Mapping[str, object]) -> NodeSpec:
    return _node(list(nodes(options.network))[-1], "torchvision-head", common)


def _node(name: str, block: str, common: Mapping[str, object]) -> NodeSpec:
    return NodeSpec(name=name, block=block, options={**common, "node": name})


TORCHVISION = ArchitectureDeclaration(
    summary="A classification network of torchvision, cut into buffered nodes.",
    options=ArchitectureOptions,
    build=f"{__name__}:torchvision",
)
DR2NET = ArchitectureDeclaration(
    summary="A classification network of torchvision with its runs of residual blocks made reversible, as Dr2Net does.",
    options=Dr2NetOptions,
    build=f"{__name__}:dr2net",
)
