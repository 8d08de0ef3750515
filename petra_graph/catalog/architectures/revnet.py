"""RevNets as the paper trains them: ResNets whose residual blocks couple two streams.

Stages of the paper (S stem, R reversible, D downsampling and buffered, H head), one node each:

    RevNet18  S RR DR DR DR H
    RevNet34  S RRR DRRR DRRRRR DRR H
    RevNet50  S DRR DRRR DRRRRR DRR H        RevNet101: 23 blocks in the third group

Each stream has the width of the ResNet, so channels are doubled in total, and parameters stay about the same, since
the residual function reads one stream (PETRA section 4.1, "Model adaptations"; Gomez et al. 2017).
"""

from __future__ import annotations

from typing import Literal

from attrs import frozen
from attrs.validators import ge, lt

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
class RevNetOptions(NetworkOptions):
    """Which RevNet."""

    depth: Literal[18, 34, 50, 101] = option("depth of the ResNet that it corresponds to")
    dropout: float = option("dropout probability inside reversible blocks", default=0.0, validator=[ge(0), lt(1)])


def nodes(options: RevNetOptions, facts: DataFacts) -> tuple[NodeSpec, ...]:
    """Write the network out, node by node."""
    basic = options.depth in BASIC_DEPTHS
    dropout = {"dropout": options.dropout} if options.dropout else {}
    made = [NodeSpec(name="stem", block="conv-stem", options={**stem_options(options, facts), "streams": 2})]
    for place in block_groups(options.depth, options.width):
        hidden = {} if basic else {"hidden": place.hidden}
        if place.changes_shape:
            block = "down-basic" if basic else "down-bottleneck"
            made.append(
                NodeSpec(
                    name=place.name,
                    block=block,
                    kind="buffered",
                    options={"channels": place.channels, **hidden, "stride": place.stride},
                )
            )
        else:
            block = "rev-basic" if basic else "rev-bottleneck"
            made.append(NodeSpec(name=place.name, block=block, kind="reversible", options={**hidden, **dropout}))
    made.append(NodeSpec(name="head", block="pool-linear", options={"outputs": class_count(options, facts)}))
    return tuple(made)


REVNET = ArchitectureDeclaration(
    summary="RevNet 18, 34, 50 or 101, for images of any size.",
    options=RevNetOptions,
    build=f"{__name__}:nodes",
)
