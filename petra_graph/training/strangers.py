"""Blocks of strangers in a run: reversible ones are inverted once before it, at the shapes that they have there and in its precision.

A wrong inverse trains silently; nothing else that a block does wrong is as dangerous. Blocks of this project are tried by its own tests.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
import torch

from petra_graph.blocks import Reversible, Shape
from petra_graph.errors import PluginError, Problem
from petra_graph.executor.numerics import NumericsContext
from petra_graph.graph.node_graph import INPUT, Node
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.plugins.checked_samples import CheckedData
from petra_graph.plugins.contract import load
from petra_graph.plugins.generators import fork_generators
from petra_graph.plugins.tensor_trees import inputs_of
from petra_graph.testing.block_checks import check_gradients, check_inverse
from petra_graph.testing.block_trial import Trial, normal
from petra_graph.testing.examination import outcome_of
from petra_graph.training.streams_of_samples import streams_of_samples

if TYPE_CHECKING:
    from petra_graph.training.prepared_run import Prepared

_BATCH = 8
"""Samples of a trial, at most."""
_OF_GRADIENTS = {"float64": 2**12, "float32": 2**17, "bfloat16": 2**5}
"""Units of rounding by which gradients may be off, behind a reconstructed input in that precision."""


def block_trials(network: MeasuredNetwork, data: CheckedData) -> Iterator[tuple[Node, Trial]]:
    """Yield one node of each block, set of options and shapes with its trial: real streams where it reads samples or integers."""
    graph, batch = network.graph, min(_BATCH, network.spec.data.batch, len(data.train))
    numerics = NumericsContext.of_run(network.spec, data.facts)
    tried: list[tuple[Any, ...]] = []

    def trial(node: Node, inputs: tuple[Shape, ...]) -> Trial:
        samples, streams = None, itertools.count()

        def draw(shape: Shape, generator: torch.Generator) -> torch.Tensor:
            nonlocal samples
            producer, place = sources[next(streams) % len(sources)]
            if producer != INPUT and network.shapes[producer].dtypes[place].is_floating_point:
                return normal(shape, generator)
            if samples is None:
                samples = data.train.fetch(np.arange(batch), seed=0, epoch=0)[0]
            if producer == INPUT:
                return numerics.prepare(inputs_of(samples)[place])
            among = nx.ancestors(graph.digraph, producer) | {producer}
            return streams_of_samples(graph, samples, numerics, among=among)[producer][place]

        sources = [
            (producer, place)
            for producer in node.inputs
            for place in range(len(data.facts.inputs) if producer == INPUT else len(network.shapes[producer].outputs))
        ]
        assert node.plugin is not None
        return Trial(
            plugin=node.plugin,
            options=node.options,
            inputs=inputs,
            batch=batch,
            draw=draw,
            seed=numerics.seed,
            memory_format=network.spec.precision.memory_format,
        )

    for name in graph.order:
        node, inputs = graph.nodes[name], network.shapes[name].inputs
        key = (node.plugin, node.options, inputs)
        if node.plugin is not None and key not in tried:
            tried.append(key)
            yield node, trial(node, inputs)


def try_strangers(prepared: Prepared) -> None:
    """Compare inverse and gradients of strangers' reversible blocks with their forward and plain autograd, on the CPU.

    Raises:
        PluginError: they differ, or the block raised.
    """
    compute = prepared.spec.precision.compute
    with fork_generators():
        for node, trial in block_trials(prepared.network, prepared.opened.data):
            if (
                trial.plugin.is_first_party
                or node.kind != "reversible"
                or not issubclass(load(trial.plugin), Reversible)
            ):
                continue
            found = outcome_of(partial(check_inverse, computes=[compute]), "inverse", trial)
            if found.status == "kept":
                gradients = partial(check_gradients, compute=compute, allowed=_OF_GRADIENTS[compute])
                found = outcome_of(gradients, "gradients", trial)
            if found.status == "broken":
                message = f'node "{node.name}": {trial.plugin.owned} breaks a promise ({found.check}): {found.found}'
                hint = "`petra-graph check` with this specification makes all checks of its blocks"
                raise PluginError(Problem(message=message, hint=hint, path=node.path))
