"""The streams between the nodes of a network that has not been trained, for given samples, on the CPU and in evaluation mode.

Node by node, so that one node's parameters are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

import torch
from torch import Tensor

from petra_graph.blocks import Block, Streams
from petra_graph.executor.numerics import NumericsContext, place
from petra_graph.graph.node_graph import INPUT, NodeGraph
from petra_graph.measure.build_block import initial_block
from petra_graph.plugins.tensor_trees import Tree, inputs_of


@torch.no_grad()
def streams_of_samples(
    graph: NodeGraph,
    samples: Tree,
    numerics: NumericsContext,
    *,
    among: Container[str] | None = None,
) -> Mapping[str, Streams]:
    """Run nodes on samples, and return what each gives.

    Args:
        graph: the network.
        samples: as the data set stores them.
        numerics: of the CPU, with the run's seed.
        among: the nodes that are run, with all that they read; None: all.
    """
    streams: dict[str, Streams] = {INPUT: tuple(map(numerics.prepare, inputs_of(samples)))}

    def read_by(name: str) -> list[Tensor]:
        return [stream for producer in graph.nodes[name].inputs for stream in streams[producer]]

    def blocks() -> Iterator[tuple[str, Block]]:
        for name in graph.order:
            if among is None or name in among:
                shapes = [tuple(stream.shape[1:]) for stream in read_by(name)]
                yield name, place(initial_block(graph.nodes[name], shapes, numerics.seed), numerics)

    for name, block in blocks():
        block.eval()
        with numerics.arithmetic():
            streams[name] = numerics.canonicalize(block(*read_by(name)))
    return streams
