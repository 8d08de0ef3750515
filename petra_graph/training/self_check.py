"""The self-check at the start of a run: plugins that are not the first party's, tried in this network before it trains.

    blocks       the kit's promises on the real shapes of their streams: inverse, recomputation, statistics, random draws
    optimizer    all promises of the kit, on small parameters
    data set     one micro-batch of each split, fetched, compared with what is declared, and finite
    loss         the head's output shape against real targets: a scalar with a graph, and metrics

The check runs on the CPU, before anything is written, and leaves every generator as it was, so that it changes no bit of
the run. `run.self_check = false` leaves it out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from attrs import evolve, frozen
from torch import Tensor

from petra_graph.blocks import Block, Shape
from petra_graph.errors import PetraGraphError, PluginError, Problem, RunFailed
from petra_graph.graph.node_graph import INPUT, Node
from petra_graph.measure.shapes import Memo
from petra_graph.planning.measure import MeasuredNetwork
from petra_graph.registry.building import load
from petra_graph.registry.contracts import BlockDeclaration, Loss
from petra_graph.registry.registry import FIRST_PARTY, Plugin
from petra_graph.registry.trust import run_plugin_code
from petra_graph.testing.conformance import examine, promises_of
from petra_graph.testing.optimizers import OptimizerTrial
from petra_graph.testing.report import Outcome
from petra_graph.testing.trial import Trial, normal
from petra_graph.training.checked_data import CheckedData, CheckedSplit
from petra_graph.training.start_reporter import StartReporter

_BLOCK_PROMISES = ("construction", "shapes", "inverse", "recomputation", "statistics", "randomness")
_SAMPLES = 2
"""In a micro-batch of a block's trial."""


@frozen(kw_only=True)
class Checked:
    """What the self-check looks at."""

    network: MeasuredNetwork
    optimizer: Plugin
    optimizer_options: Any
    loss: Plugin
    built_loss: Loss
    data_set: Plugin
    data: CheckedData
    reporter: StartReporter

    def step(self, what: str) -> AbstractContextManager[None]:
        """Return the context of a part of the self-check."""
        return self.reporter.step(f"the self-check of {what}", self.network.spec.run.watchdog)


def self_check(checked: Checked) -> None:
    """Try all plugins that are not the first party's.

    Raises:
        PluginError: a plugin breaks its promises: all of them, each with what was found and what to do; or the data set
            raised, or returned what it does not declare.
    """
    with _generators_as_they_were(), closing(checked.reporter):
        problems = [*_blocks(checked), *_optimizer(checked)]
        if problems:
            raise PluginError(problems)
        try:
            with checked.step(checked.data_set.owned):
                fetched = _fetched(checked)
        except RunFailed as error:
            raise PluginError([evolve(one, path=("data", "name")) for one in error.problems]) from error
        with checked.step(checked.loss.owned):
            _try_loss(checked, fetched)


def _blocks(checked: Checked) -> Iterator[Problem]:
    network = checked.network
    memo = Memo[Sequence[Outcome]]()
    for name in network.graph.order:
        node = network.graph.nodes[name]
        if node.plugin is None or node.plugin.distribution == FIRST_PARTY:
            continue
        inputs = network.shapes[name].inputs
        dtypes = tuple(dtype for producer in node.inputs for dtype in _dtypes(checked, producer))
        key = (node.plugin, node.options, node.kind, inputs, dtypes)
        with checked.step(f'node "{name}" ({node.plugin.owned})'):
            broken = memo.get(key, partial(_broken, checked, node, inputs, dtypes))
        for outcome in broken:
            message = f'node "{name}": {node.plugin.owned} breaks a promise ({outcome.promise}): {outcome.found}'
            yield Problem(message=message, hint=outcome.remedy, path=node.path)


def _broken(checked: Checked, node: Node, inputs: Sequence[Shape], dtypes: Sequence[torch.dtype]) -> Sequence[Outcome]:
    assert node.plugin is not None
    real = _real_samples(checked) if INPUT in node.inputs else None
    streams = iter(range(10**9))

    def draw(shape: Shape, generator: torch.Generator) -> Tensor:
        at = next(streams) % len(inputs)
        if real is not None:
            return real[: shape[0]]
        dtype = dtypes[at]
        if dtype.is_floating_point:
            return normal(shape, generator)
        return torch.randint(2, shape, generator=generator).to(dtype)

    trial = Trial(
        block_class=cast(type[Block], load(node.plugin)),
        declaration=cast(BlockDeclaration, node.plugin.declaration),
        inputs=tuple(inputs),
        options=node.options,
        batch=_SAMPLES,
        draw=draw,
    )
    others = [promise for promise in promises_of(trial) if promise not in _BLOCK_PROMISES]
    return examine(trial, leave_out=others).broken


def _dtypes(checked: Checked, producer: str) -> Sequence[torch.dtype]:
    if producer != INPUT:
        return checked.network.shapes[producer].dtypes
    return (torch.int64 if checked.data.facts.dtype == "int64" else torch.float32,)


def _real_samples(checked: Checked) -> Tensor:
    """Return samples of the training data, images as a stem reads them but for their normalisation."""
    samples, _ = checked.data.train.fetch(np.arange(_SAMPLES), seed=0, epoch=0)
    return samples / 255 if samples.dtype == torch.uint8 else samples


def _optimizer(checked: Checked) -> Iterator[Problem]:
    plugin = checked.optimizer
    if plugin.distribution == FIRST_PARTY:
        return
    with checked.step(plugin.owned):
        found = examine(OptimizerTrial(plugin=plugin, options=checked.optimizer_options)).broken
    for outcome in found:
        message = f"{plugin.owned} breaks a promise ({outcome.promise}): {outcome.found}"
        yield Problem(message=message, hint=outcome.remedy, path=("optimizer", "name"))


def _fetched(checked: Checked) -> Tensor | None:
    """Fetch a micro-batch of each split of a data set that is not the first party's; return test targets."""
    if checked.data_set.distribution == FIRST_PARTY and checked.loss.distribution == FIRST_PARTY:
        return None
    rows = checked.network.spec.data.batch
    targets = None
    for split in (checked.data.train, checked.data.test):
        indices = np.arange(min(rows, len(split)))
        split.require_finite(indices, seed=0, epoch=0)
        targets = _targets(split, indices)
    return targets


def _targets(split: CheckedSplit, indices: Any) -> Tensor:
    alone = split.fetch_targets
    return split.fetch(indices, seed=0, epoch=0)[1] if alone is None else alone(indices)


def _try_loss(checked: Checked, targets: Tensor | None) -> None:
    """Call a loss that is not the first party's as an evaluation does, on outputs of zeros.

    Raises:
        PluginError: it raised, or breaks its contract.
    """
    if targets is None or checked.loss.distribution == FIRST_PARTY:
        return
    network = checked.network
    (shape,) = network.shapes[network.graph.head].outputs
    output = torch.zeros(len(targets), *shape, requires_grad=True)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: checked.built_loss(output, targets),
        lambda: checked.built_loss.metrics(output.detach(), targets),
    )
    for call in calls:
        try:
            run_plugin_code(
                call, f"{checked.loss.owned} failed on outputs {list(output.shape)} and targets {list(targets.shape)}"
            )
        except PetraGraphError as error:
            raise PluginError([evolve(one, path=("loss", "name")) for one in error.problems]) from error


@contextmanager
def _generators_as_they_were() -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  what plugins may have moved
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
            torch.set_num_threads(threads)
