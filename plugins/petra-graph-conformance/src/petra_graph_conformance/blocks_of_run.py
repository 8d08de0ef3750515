"""The blocks of a run, in trials with the real shapes of their streams."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import cast

import networkx as nx
import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor

from petra_graph.blocks import Block, Shape, Streams
from petra_graph.graph.node_graph import INPUT, Node
from petra_graph.kinds.block import BlockDeclaration
from petra_graph.kinds.plugin import load
from petra_graph.kinds.tensor_trees import Tree, inputs_of
from petra_graph.measure.node_shapes import read_by_network
from petra_graph.training.streams_of_samples import streams_of_samples
from petra_graph_conformance.blocks.block_trial import Trial, normal
from petra_graph_conformance.blocks.learned_and_running_state import remembers_in_buffers
from petra_graph_conformance.blocks.micro_batches_through_block import Harness
from petra_graph_conformance.blocks.repeatable_evaluation import batch_and_rows
from petra_graph_conformance.head_and_targets import HeadAndTargets, samples_of
from petra_graph_conformance.promise_report import Outcome

_OF_OTHER_EVALUATIONS = ("statistics", "recomputation", "randomness", "gradients", "inverse")
"""What a block need not promise whose forward runs once, with its graph, and which remembers nothing outside its buffers."""
_RUN_MODULES_OF_OTHERS = frozenset({"petra_graph_modules", "petra_graph_hf", "petra_graph_torchvision"})
"""Packages of this project whose blocks run any torch.nn.Module, which promises less than a block: what it draws when it is made need
not be in its `state_dict`, and a run makes it again from its seed."""
_SAMPLES = 2
"""The samples in a micro-batch of a trial."""


@frozen(kw_only=True)
class BlocksOfRun:
    """The blocks of a run."""

    fit: HeadAndTargets
    kept: Collection[str]
    """The nodes whose forward keeps its graph."""
    _streams: dict[str, Streams] = field(factory=dict, init=False)

    def alike(self, nodes: Sequence[Node]) -> Iterator[list[Node]]:
        """Yield nodes of one block with the same options, streams and passes, together."""
        groups: list[tuple[object, list[Node]]] = []
        for node in nodes:
            key = self.how(node)
            together = next((others for other, others in groups if other == key), None)
            if together is None:
                groups.append((key, together := []))
            together.append(node)
        yield from (together for _, together in groups)

    def how(self, node: Node) -> tuple[object, ...]:
        """Return what a node's trial follows from."""
        inputs, dtypes, _ = self._read(node)
        precision = self.fit.network.spec.precision
        runs_once = self._runs_once(node)
        return node.plugin, node.options, node.kind, inputs, dtypes, runs_once, precision

    def _runs_once(self, node: Node) -> bool:
        return node.kind == "head" or node.name in self.kept

    def outputs_of(self, node: Node) -> Tensor:
        """Return what a node gives for drawn streams."""
        harness = Harness(self.trial(node), "float32")
        return harness.peek(0, harness.inputs(0))[0]

    def broken(self, node: Node, trial: Trial, outcomes: Sequence[Outcome]) -> tuple[Sequence[Outcome], str]:
        """Return which broken promises matter in this run, and a note of why none does where the block cannot be judged."""
        of_others = trial.block_class.__module__.partition(".")[0] in _RUN_MODULES_OF_OTHERS
        # A module of others whose running statistics decide its outputs is no block, and trains as it does in plain PyTorch.
        statistics = of_others and not any(one.promise == "statistics" for one in outcomes)
        runs_once = self._runs_once(node)
        if outcomes and ((runs_once and of_others) or ((runs_once or statistics) and remembers_in_buffers(trial))):
            outcomes = tuple(one for one in outcomes if one.promise not in _OF_OTHER_EVALUATIONS)
        if of_others:
            outcomes = tuple(one for one in outcomes if one.promise != "state dictionary")
        if not outcomes or _is_finite(trial):
            return outcomes, ""
        return (), (
            f'node "{node.name}" has not been tried: what it computes of streams that were drawn for it is not finite; if it is of '
            "those that it reads, run.self_check = false leaves out the check"
        )

    def trial(self, node: Node) -> Trial:
        """Return a node's block with the shapes of its streams, drawn, or real where they are samples or integers."""
        assert node.plugin is not None
        inputs, dtypes, sources = self._read(node)
        streams, precision = iter(range(10**9)), self.fit.network.spec.precision

        def draw(shape: Shape, generator: torch.Generator) -> Tensor:
            at = next(streams) % len(inputs)
            (producer, place), dtype = sources[at], dtypes[at]
            if producer == INPUT:
                samples = inputs_of(self._samples())[place]
                return (samples / 255 if samples.dtype == torch.uint8 else samples)[: shape[0]]
            if dtype.is_floating_point:
                return normal(shape, generator)
            real = self._real_streams(producer)
            return torch.randint(2, shape, generator=generator).to(dtype) if real is None else real[place][: shape[0]]

        return Trial(
            block_class=cast(type[Block], load(node.plugin)),
            declaration=cast(BlockDeclaration, node.plugin.declaration),
            inputs=tuple(inputs),
            options=node.options,
            batch=_SAMPLES,
            draw=draw,
            compute="float64" if precision.compute == "float64" else "float32",
            memory_format=precision.memory_format,
            distribution=node.plugin.distribution,
        )

    def _read(self, node: Node) -> tuple[Sequence[Shape], Sequence[torch.dtype], Sequence[tuple[str, int]]]:
        """Return shape, type and source of the streams that a node's own block reads, whatever graph passes put around it."""
        types = read_by_network(self.fit.opened.data.facts)[1]
        samples = tuple(types.values()) if isinstance(types, Mapping) else (types,)
        shapes = self.fit.network.shapes
        of_producer = [(one, samples if one == INPUT else shapes[one].dtypes) for one in node.inputs]
        every = [(dtype, (one, at)) for one, dtypes in of_producer for at, dtype in enumerate(dtypes)]
        inputs = shapes[node.name].inputs
        reads = node.read_by_block(range(len(inputs)))
        dtypes, sources = zip(*(every[at] for at in reads), strict=True)
        return tuple(inputs[at] for at in reads), dtypes, sources

    def _samples(self) -> Tree:
        return samples_of(self.fit.opened.data.train, np.arange(_SAMPLES))

    def _real_streams(self, producer: str) -> Streams | None:
        """Return what a node gives for samples of the training data; None where the network cannot be run.

        A random mask could pass over all tokens of a sample.
        """
        if producer not in self._streams:
            graph, samples = self.fit.network.graph, self._samples()
            among = nx.ancestors(graph.digraph, producer) | {producer}
            with suppress(Exception):  # of a block that is broken, which its own trial says
                self._streams.update(streams_of_samples(graph, samples, self.fit.numerics, among=among))
        return self._streams.get(producer)


def _is_finite(trial: Trial) -> bool:
    """Whether a block's outputs are finite, in training and in evaluation; what raises is examined."""
    try:
        harness = Harness(trial, "float32")
        inputs = harness.inputs(0)
        trained = harness.peek(0, inputs)
        whole, rows = batch_and_rows(harness.block.eval(), inputs)
        return all(bool(one.isfinite().all()) for one in (*trained, *whole, *rows))
    except Exception:  # noqa: BLE001
        return True
