"""Nodes with the parameters that a run begins with, and parameters that several nodes share.

A parameter that several nodes name in `Block.shared_parameters` begins in all of them with the values of the first. Nodes of one stage have one
parameter: gradients of all uses are summed, and it is updated once, as in plain torch. Nodes of several stages cannot, since each stage
updates its own parameters at its own time (`planning.shared_across_stages`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import torch
from torch import nn

from petra_graph.blocks import Block, Shape
from petra_graph.blocks.randomness import fork_rng, random_key
from petra_graph.graph.node_graph import Node, NodeGraph
from petra_graph.measure.build_block import build_block
from petra_graph.measure.node_shapes import NodeShapes


def initial_block(node: Node, inputs: Sequence[Shape], seed: int) -> Block:
    """Build a node on the CPU, with the random parameters of a run's seed; errors as `build_block`.

    Options with `drawn_as` are of nodes that one constructor makes, and so draw the same.
    """
    with fork_rng(random_key(seed, getattr(node.options, "drawn_as", node.name), "initial"), torch.device("cpu")):
        return build_block(node, inputs)


def initial_blocks(
    graph: NodeGraph, shapes: Mapping[str, NodeShapes], seed: int, names: Iterable[str]
) -> dict[str, Block]:
    """Build nodes on the CPU; their parameters follow from the seed and the names of the nodes.

    Raises:
        SpecError, PluginError: as `build_block`.
    """
    first: dict[str, tuple[str, str]] = {}
    for name in graph.order:
        for key, shared in shapes[name].shared.items():
            first.setdefault(shared.label, (name, key))

    @cache
    def built(name: str) -> Block:
        return initial_block(graph.nodes[name], shapes[name].inputs, seed)

    blocks = {name: built(name) for name in names}
    for name, block in blocks.items():
        for key, shared in shapes[name].shared.items():
            owner, known = first[shared.label]
            if owner != name:
                with torch.no_grad():
                    block.get_parameter(key).copy_(built(owner).get_parameter(known))
    for block in blocks.values():
        vars(block).pop("built", None)  # the network that parts were taken from
    return blocks


def tie(blocks: Mapping[str, Block], shapes: Mapping[str, NodeShapes]) -> None:
    """Let nodes of one stage have one parameter where they share it, trained if one of them trains it."""
    known: dict[str, nn.Parameter] = {}
    for name, block in blocks.items():
        for key, shared in shapes[name].shared.items():
            own = block.get_parameter(key)
            one = known.setdefault(shared.label, own)
            if shared.trained:
                one.requires_grad_()
            for path, parameter in list(block.named_parameters(remove_duplicate=False)):
                if parameter is own:
                    layer, _, last = path.rpartition(".")
                    setattr(block.get_submodule(layer), last, one)
