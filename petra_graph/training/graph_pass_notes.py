"""What graph passes say of the network that they have changed, and how far it is from the network itself before it trains.

That is the norm of the difference of both networks' outputs for one micro-batch, over that of the network itself: in evaluation mode, with
the weights that the run begins with.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from petra_graph.executor.numerics import Normalisation, NumericsContext
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.planning.network.graph_passes import sentences
from petra_graph.training.prepared_run import Prepared
from petra_graph.training.streams_of_samples import streams_of_samples


def graph_pass_notes(prepared: Prepared) -> Iterator[str]:
    """Yield the sentences of all passes; errors as of `sentences`."""
    for one in prepared.network.passes:
        yield from sentences(one, "notes", prepared.network.graph, partial(difference, prepared))


@torch.no_grad()
def difference(prepared: Prepared) -> float:
    """Return how far the network is from the one without graph passes."""
    data = prepared.opened.data
    indices = np.arange(min(prepared.spec.data.batch, len(data.train)))
    samples, _ = data.train.fetch(indices, seed=prepared.spec.run.seed, epoch=0)
    graph = prepared.network.graph
    own, changed = (_output(prepared, one, samples).double() for one in (graph.as_given, graph))
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
