"""What a run says of itself before it trains: its figures, what was decided for it, and what graph passes have changed.

A changed network is as far from the network itself as the norm of the difference of both outputs for one micro-batch, over that of the network
itself: in evaluation mode, with the weights that the run begins with.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from petra_graph.executor.numerics import Normalisation, NumericsContext
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.planning.advice.run_warnings import products_note
from petra_graph.planning.measure_network import what_a_pass_says
from petra_graph.program.schedule import schedule_text
from petra_graph.training.prepared_run import Prepared
from petra_graph.training.streams_of_samples import streams_of_samples


def outline(prepared: Prepared) -> dict[str, Any]:
    """Return the figures that `run --dry-run` prints."""
    spec, network, opened = prepared.spec, prepared.network, prepared.opened
    return {
        "name": spec.name,
        "nodes": len(network.graph.nodes),
        "stages": len(prepared.programs),
        "parameters": network.parameters_in(prepared.programs),
        "method": network.checked.method.name,
        "schedule": schedule_text(prepared.placement.schedule),
        "accumulation": spec.method.accumulation,
        "devices": list(dict.fromkeys(program.device for program in prepared.programs)),
        "training samples": len(opened.data.train),
        "test samples": len(opened.data.test),
        "micro-batches": spec.run.epochs * len(opened.batches),
        "updates": opened.horizon.updates,
    }


def run_notes(prepared: Prepared) -> list[str]:
    """Return what was decided for the run, or has a choice, in sentences."""
    products = products_note(prepared.spec.precision, {"cuda"} if prepared.on_cuda else ())
    return [*prepared.placement.notes, *products]


def graph_pass_notes(prepared: Prepared) -> Iterator[str]:
    """Yield the sentences of all passes; errors as of `what_a_pass_says`."""
    for one in prepared.checked.passes:
        yield from what_a_pass_says(one, "notes", prepared.network.graph, partial(difference, prepared))


@torch.no_grad()
def difference(prepared: Prepared) -> float:
    """Return how far the network is from the one without graph passes."""
    data, graph = prepared.opened.data, prepared.network.graph
    indices = np.arange(min(prepared.spec.data.batch, len(data.train)))
    samples, _ = data.train.fetch(indices, seed=prepared.spec.run.seed, epoch=0)
    given, changed = (_output(prepared, one, samples).double() for one in (graph.as_given, graph))
    return float((changed - given).norm() / given.norm())


def _output(prepared: Prepared, graph: NodeGraph, samples: Tensor) -> Tensor:
    numerics = NumericsContext(
        device=torch.device("cpu"),
        precision=prepared.spec.precision,
        seed=prepared.spec.run.seed,
        normalisation=Normalisation.of(prepared.facts),
    )
    loaded = (lambda blocks: blocks) if prepared.initial is None else prepared.initial.loaded
    return streams_of_samples(graph, samples, numerics, loaded=loaded)[graph.head][0]
