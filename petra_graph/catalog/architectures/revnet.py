"""RevNets as the paper trains them: ResNets whose residual blocks couple two streams.

The paper's stages, one node each (S stem, R reversible, D downsampling and buffered, H head):

    RevNet18  S RR DR DR DR H
    RevNet34  S RRR DRRR DRRRRR DRR H
    RevNet50  S DRR DRRR DRRRRR DRR H        RevNet101: 23 blocks in the third group

Each stream has the width of the ResNet, which doubles the channels in total; the number of parameters is about the
same, since the residual function reads one stream (PETRA section 4.1, "Model adaptations"; Gomez et al. 2017).
"""

from __future__ import annotations

from attrs import frozen
from attrs.validators import ge, lt

from petra_graph.catalog.architectures.groups import Depth, NetworkOptions, ResidualBlock, network
from petra_graph.registry.contracts import ArchitectureDeclaration, DataFacts, option
from petra_graph.spec.model import NodeSpec


@frozen(kw_only=True)
class RevNetOptions(NetworkOptions):
    """Depth, width, classes, stem and dropout of a RevNet."""

    depth: Depth = option("depth of the ResNet that it corresponds to")
    dropout: float = option("dropout probability inside reversible blocks", default=0.0, validator=[ge(0), lt(1)])


def nodes(options: RevNetOptions, facts: DataFacts) -> tuple[NodeSpec, ...]:
    """Return the nodes of a RevNet for these images."""
    dropout = {"dropout": options.dropout} if options.dropout else {}

    def node(block: ResidualBlock) -> NodeSpec:
        if block.changes_shape:
            return NodeSpec(name=block.name, block=f"down-{block.form}", kind="buffered", options=block.shape_options)
        return NodeSpec(
            name=block.name, block=f"rev-{block.form}", kind="reversible", options={**block.hidden_option, **dropout}
        )

    return network(options, facts, options.depth, streams=2, node=node)


REVNET = ArchitectureDeclaration(
    summary="RevNet 18, 34, 50 or 101, for images of any size.",
    options=RevNetOptions,
    build=f"{__name__}:nodes",
)
