"""ResNets as the paper's baselines: all nodes are buffered, since no block has an inverse."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from petra_graph.catalog.architectures.groups import (
    BASIC_DEPTHS,
    NetworkOptions,
    block_groups,
    class_count,
    stem_options,
)
from petra_graph.registry.contracts import ArchitectureDeclaration, DataFacts, option
from petra_graph.spec.model import NodeSpec


@frozen(kw_only=True)
class ResNetOptions(NetworkOptions):
    """Which ResNet."""

    depth: Literal[18, 34, 50, 101] = option("number of weighted layers")


def nodes(options: ResNetOptions, facts: DataFacts) -> tuple[NodeSpec, ...]:
    """Write the network out, node by node."""
    basic = options.depth in BASIC_DEPTHS
    made = [NodeSpec(name="stem", block="conv-stem", options={**stem_options(options, facts), "streams": 1})]
    for place in block_groups(options.depth, options.width):
        hidden = {} if basic else {"hidden": place.hidden}
        made.append(
            NodeSpec(
                name=place.name,
                block="res-basic" if basic else "res-bottleneck",
                options={"channels": place.channels, **hidden, "stride": place.stride},
            )
        )
    made.append(NodeSpec(name="head", block="pool-linear", options={"outputs": class_count(options, facts)}))
    return tuple(made)


RESNET = ArchitectureDeclaration(
    summary="ResNet 18, 34, 50 or 101, for images of any size; no node is reversible.",
    options=ResNetOptions,
    build=f"{__name__}:nodes",
)
