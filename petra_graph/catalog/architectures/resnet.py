"""ResNets as the paper's baselines: all nodes are buffered, since no block has an inverse."""

from __future__ import annotations

from attrs import frozen

from petra_graph.catalog.architectures.groups import Depth, NetworkOptions, ResidualBlock, network
from petra_graph.registry.contracts import ArchitectureDeclaration, DataFacts, option
from petra_graph.spec.model import NodeSpec


@frozen(kw_only=True)
class ResNetOptions(NetworkOptions):
    """Depth, width, classes and stem of a ResNet."""

    depth: Depth = option("number of weighted layers")


def nodes(options: ResNetOptions, facts: DataFacts) -> tuple[NodeSpec, ...]:
    """Return the nodes of a ResNet for these images."""

    def node(block: ResidualBlock) -> NodeSpec:
        return NodeSpec(name=block.name, block=f"res-{block.form}", options=block.shape_options)

    return network(options, facts, options.depth, streams=1, node=node)


RESNET = ArchitectureDeclaration(
    summary="ResNet 18, 34, 50 or 101, for images of any size; no node is reversible.",
    options=ResNetOptions,
    build=f"{__name__}:nodes",
)
