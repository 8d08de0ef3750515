"""The blocks of a run, tried on the real shapes of their streams before it trains."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import cast

import networkx as nx
import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor

from petra_graph.blocks import Block, Shape, Streams
from petra_graph.errors import Path, Problem
from petra_graph.graph.node_graph import INPUT, Node
from petra_graph.kinds.author_code import remedy
from petra_graph.kinds.block import BlockDeclaration
from petra_graph.kinds.plugin import Plugin, load
from petra_graph.measure.node_shapes import Memo
from petra_graph.training.head_and_targets import HeadAndTargets
from petra_graph.training.streams_of_samples import streams_of_samples
from petra_graph_conformance.blocks.block_trial import Trial, normal
from petra_graph_conformance.blocks.blocks_at_a_glance import looks_sound
from petra_graph_conformance.blocks.learned_and_running_state import IN_A_FORWARD, remembers_in_buffers
from petra_graph_conformance.blocks.micro_batches_through_block import Harness
from petra_graph_conformance.blocks.repeatable_evaluation import batch_and_rows
from petra_graph_conformance.broken_promise import BrokenPromise
from petra_graph_conformance.examined_promises import examine
from petra_graph_conformance.promise_report import Outcome

_CAUSES = (
    "construction",
    "shapes",
    "streams untouched",
    "state",
    "randomness",
    "recomputation",
    "same block",
    "inverse",
    "gradients",
    "statistics",
    "evaluation mode",
)
"""Where several promises of a block are broken, the first of these explains the others; "state" is state that moves in any forward."""
_OF_OTHER_EVALUATIONS = ("statistics", "recomputation", "randomness", "gradients", "inverse")
"""What a block need not promise whose forward runs once, with its graph, and which remembers nothing outside its buffers."""
_SAMPLES = 2
"""The samples in a micro-batch of a trial."""


@frozen(kw_only=True)
class BlocksOfRun:
    """The blocks of a run that are not the first party's."""

    fit: HeadAndTargets
    kept: Collection[str]
    """The nodes whose forward keeps its graph."""
    doubts: list[str] = field(factory=list, init=False)
    _streams: dict[str, Streams] = field(factory=dict, init=False)

    def problems(self, step: Callable[[str], AbstractContextManager[None]]) -> Iterator[Problem]:
        """Yield the broken promises of each block; `step` is the context in which one node is tried."""
        network = self.fit.network
        memo = Memo[Sequence[Outcome]]()
        found: list[tuple[Node, Sequence[Outcome], list[str]]] = []
        for name in network.graph.order:
            node = network.graph.nodes[name]
            if node.plugin is None or node.plugin.is_first_party:
                continue
            inputs, dtypes, _ = self._read(node)
            runs_once = node.kind == "head" or name in self.kept
            key = (node.plugin, node.options, node.kind, inputs, dtypes, runs_once)
            with step(f'node "{name}" ({node.plugin.owned})'):
                broken = memo.get(key, partial(self._broken_by_block, node, runs_once=runs_once))
            alike = next((nodes for _, outcomes, nodes in found if outcomes is broken), None)
            if alike is not None:
                alike.append(name)
            elif broken:
                found.append((node, broken, [name]))
        for node, broken, nodes in found:
            assert node.plugin is not None
            cause, *others = sorted(broken, key=_cause)
            more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
            names = [other.promise for other in others]
            yield problem_of(node.plugin, cause, node.path, names, node=f'node "{nodes[0]}"{more}: ')

    def outputs_of(self, node: Node) -> Tensor:
        """Return what a node gives for drawn streams."""
        harness = Harness(self._trial(node), "float32")
        return harness.peek(0, harness.inputs(0))[0]

    def _broken_by_block(self, node: Node, *, runs_once: bool) -> Sequence[Outcome]:
        trial = self._trial(node)
        if looks_sound(trial):
            return ()
        broken = examine(trial, "before_run").broken
        if broken and runs_once and remembers_in_buffers(trial):
            broken = tuple(one for one in broken if one.promise not in _OF_OTHER_EVALUATIONS)
        if not broken or _is_finite(trial):
            return broken
        self.doubts.append(
            f'node "{node.name}" has not been tried: what it computes of streams that were drawn for it is not finite; if it is of '
            "those that it reads, run.self_check = false leaves out the check"
        )
        return ()

    def _trial(self, node: Node) -> Trial:
        assert node.plugin is not None
        inputs, dtypes, sources = self._read(node)
        streams, precision = iter(range(10**9)), self.fit.network.spec.precision

        def draw(shape: Shape, generator: torch.Generator) -> Tensor:
            at = next(streams) % len(inputs)
            (producer, place), dtype = sources[at], dtypes[at]
            if producer == INPUT:
                samples = self._samples()
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
        )

    def _read(self, node: Node) -> tuple[Sequence[Shape], Sequence[torch.dtype], Sequence[tuple[str, int]]]:
        """Return shape, type and source of the streams that a node's own block reads, whatever graph passes put around it."""
        samples = torch.int64 if self.fit.opened.data.facts.dtype == "int64" else torch.float32
        shapes = self.fit.network.shapes
        of_producer = [(one, (samples,) if one == INPUT else shapes[one].dtypes) for one in node.inputs]
        every = [(dtype, (one, at)) for one, dtypes in of_producer for at, dtype in enumerate(dtypes)]
        inputs = shapes[node.name].inputs
        reads = node.read_by_block(range(len(inputs)))
        dtypes, sources = zip(*(every[at] for at in reads), strict=True)
        return tuple(inputs[at] for at in reads), dtypes, sources

    def _samples(self) -> Tensor:
        return self.fit.opened.data.train.fetch(np.arange(_SAMPLES), seed=0, epoch=0)[0]

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


def doubt_of(plugin: Plugin, broken: Outcome | BrokenPromise) -> str:
    """Return the warning of what breaks a promise and may be meant."""
    return f"{plugin.owned} ({broken.promise}): {broken.found}; unless that is meant, {broken.remedy}"


def problem_of(
    plugin: Plugin, broken: Outcome | BrokenPromise, path: Path, others: Sequence[str] = (), node: str = ""
) -> Problem:
    """Return the problem of a broken promise."""
    more = f" (and with it: {', '.join(others)})" if others else ""
    message = f"{node}{plugin.owned} breaks a promise ({broken.promise}): {broken.found}{more}"
    return Problem(message=message, hint=broken.remedy or remedy(plugin.distribution), path=path)


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


def _cause(outcome: Outcome) -> int:
    """Return an outcome's place in the order of causes."""
    return _CAUSES.index("state" if IN_A_FORWARD in outcome.found else outcome.promise)
