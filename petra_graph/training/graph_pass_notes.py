"""How far a network that `[conversion]` changes is from the network itself, before it trains: the outputs of both for one micro-batch.

In evaluation mode, with the weights that the run begins with.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from petra_graph.executor.numerics import Normalisation, NumericsContext
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.planning.network.converted_graph import unconverted
from petra_graph.training.prepared_run import Prepared
from petra_graph.training.streams_of_samples import streams_of_samples
from petra_graph.units import plural


def conversion_notes(prepared: Prepared) -> Iterator[str]:
    """Say how many nodes are converted, and how far the converted network is from the network itself; nothing without `[conversion]`."""
    graph, spec = prepared.network.graph, prepared.spec.conversion
    steps = [node for node in graph.nodes.values() if node.conversion is not None and node.conversion.step is not None]
    if spec is None or not steps:
        return
    chains = sum(node.conversion is not None and node.conversion.first for node in steps)
    yield (
        f"{plural(len(steps), 'node')} in {plural(chains, 'chain')} are reversible ({spec.coupling}); for the first micro-batch, the "
        f"network's output differs from the unconverted one's by {conversion_error(prepared):.2g} of its norm"
    )


@torch.no_grad()
def conversion_error(prepared: Prepared) -> float:
    """Return the norm of the difference of the two outputs over that of the unconverted network's."""
    data = prepared.opened.data
    indices = np.arange(min(prepared.spec.data.batch, len(data.train)))
    samples, _ = data.train.fetch(indices, seed=prepared.spec.run.seed, epoch=0)
    graph = prepared.network.graph
    own, changed = (_output(prepared, one, samples).double() for one in (unconverted(graph), graph))
    return float((changed - own).norm() / own.norm())


def _output(prepared: Prepared, graph: NodeGraph, samples: Tensor) -> Tensor:
    spec = prepared.spec
    numerics = NumericsContext(
        device=torch.device("cpu"),
        precision=spec.precision,
        seed=spec.run.seed,
        normalisation=Normalisation.of(prepared.facts),
    )
    loaded = (lambda blocks: blocks) if prepared.initial is None else prepared.initial.loaded
    return streams_of_samples(graph, samples, numerics, loaded=loaded)[graph.head][0]
