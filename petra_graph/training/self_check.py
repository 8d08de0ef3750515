"""The self-check at the start of a run: plugins that are not the first party's, tried in this network before it trains.

    blocks       the kit's promises on the real shapes of their streams: inverse, recomputation, statistics, random draws, evaluation;
                 at a glance, and one by one where that finds something
    optimizer    all promises of the kit, on small parameters
    data set     one micro-batch of each split, fetched, compared with what is declared, and finite; some samples again and again
    lr schedule  the learning rates of some updates, over the whole run, twice
    loss         outputs of the head's shape against real targets: a finite scalar with a gradient, the mean over the samples, and
                 metrics that are sums over them

The check runs on the CPU, before anything is written, and leaves every generator as it was, so that it changes no bit of
the run. `run.self_check = false` leaves it out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from attrs import evolve, frozen
from torch import Tensor

from petra_graph.blocks import Block, Shape
from petra_graph.errors import PluginError, Problem, RunFailed, SpecError, at_path
from petra_graph.executor.reconstruct_recompute_stash import HeadResult
from petra_graph.graph.node_graph import INPUT, Node
from petra_graph.measure.shapes import Memo
from petra_graph.planning.measure import MeasuredNetwork
from petra_graph.registry.building import load
from petra_graph.registry.built import AUTHOR
from petra_graph.registry.contracts import BlockDeclaration, Loss, target_weight
from petra_graph.registry.registry import FIRST_PARTY, Plugin
from petra_graph.testing.conformance import examine, promises_of
from petra_graph.testing.optimizers import OptimizerTrial
from petra_graph.testing.report import Outcome
from petra_graph.testing.screening import looks_sound
from petra_graph.testing.state import IN_A_FORWARD
from petra_graph.testing.trial import Trial, normal
from petra_graph.training.checked_data import CheckedData
from petra_graph.training.loop.meters import Meters
from petra_graph.training.promises_in_run import (
    broken_by_data,
    broken_by_loss,
    broken_by_schedule,
    targets_for_loss,
    targets_of,
)
from petra_graph.training.start_reporter import StartReporter

_BLOCK_PROMISES = (
    "construction",
    "shapes",
    "streams untouched",
    "inverse",
    "recomputation",
    "statistics",
    "randomness",
    "evaluation mode",
)
_CAUSES = (
    "construction",
    "shapes",
    "streams untouched",
    "state",
    "randomness",
    "recomputation",
    "inverse",
    "statistics",
    "evaluation mode",
)
"""Where several promises are broken, the first of these explains the others; "state" is that which moves in any forward."""
_SAMPLES = 2
"""In a micro-batch of a block's trial."""
_UPDATES, _ASKED_AGAIN = 1000, 60
"""Of a run, whose learning rates are asked for; and of these, asked for again."""


@frozen(kw_only=True)
class Checked:
    """What the self-check looks at."""

    network: MeasuredNetwork
    optimizer: Plugin
    optimizer_options: Any
    loss: Plugin
    built_loss: Loss
    lr_schedule: Plugin
    rate: Callable[[int], float]
    updates: int
    """Of the run."""
    data_set: Plugin
    data: CheckedData
    reporter: StartReporter

    def step(self, what: str) -> AbstractContextManager[None]:
        """Return the context of a part of the self-check."""
        return self.reporter.step(f"trying {what}", self.network.spec.run.watchdog)


def self_check(checked: Checked) -> None:
    """Try all plugins that are not the first party's.

    Raises:
        PluginError: a plugin breaks its promises: all of them, each with what was found and what to do; or the data set
            raised, or returned what it does not declare.
    """
    with _generators_as_they_were():
        problems = [*_blocks(checked), *_optimizer(checked), *_lr_schedule(checked)]
        if problems:
            raise PluginError(problems)
        try:
            with checked.step(checked.data_set.owned):
                fetched = _fetched(checked)
                if checked.data_set.distribution != FIRST_PARTY:
                    problems += broken_by_data(checked.data_set, checked.data)
                spread = (
                    None
                    if checked.loss.distribution == FIRST_PARTY
                    else targets_for_loss(checked.data, _output(checked))
                )
        except RunFailed as error:
            raise PluginError([evolve(one, path=("data", "name")) for one in error.problems]) from error
        if problems:
            raise PluginError(problems)
        with checked.step(checked.loss.owned):
            _try_loss(checked, fetched)
            if spread is not None:
                with at_path("loss", "name"):
                    problems += broken_by_loss(checked.loss, checked.built_loss, _output(checked), spread)
        if problems:
            raise PluginError(problems)


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
        if broken:
            cause, *others = sorted(broken, key=_cause)
            more = f" (and with it: {', '.join(other.promise for other in others)})" if others else ""
            message = f'node "{name}": {node.plugin.owned} breaks a promise ({cause.promise}): {cause.found}{more}'
            yield Problem(message=message, hint=cause.remedy, path=node.path)


def _cause(outcome: Outcome) -> int:
    """Return a place in the order of causes."""
    return _CAUSES.index("state" if IN_A_FORWARD in outcome.found else outcome.promise)


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
    if looks_sound(trial):
        return ()
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
        if outcome.found.startswith(plugin.owned):
            message = outcome.found
        yield Problem(message=message, hint=outcome.remedy or AUTHOR, path=("optimizer", "name"))


def _lr_schedule(checked: Checked) -> Sequence[Problem]:
    """Ask a schedule for some of the run's learning rates, the first and the last among them."""
    if checked.lr_schedule.distribution == FIRST_PARTY:
        return ()
    try:
        with checked.step(checked.lr_schedule.owned), at_path("lr_schedule", "name"):
            spread = np.linspace(0, checked.updates - 1, min(checked.updates, _UPDATES))
            asked = np.unique(spread.astype(int)).tolist()
            for update in asked:
                checked.rate(update)
            again = asked[:: -(-len(asked) // _ASKED_AGAIN)]
            return list(broken_by_schedule(checked.lr_schedule, checked.rate, again))
    except PluginError as error:
        return error.problems


def _fetched(checked: Checked) -> Tensor | None:
    """Fetch a micro-batch of each split of a data set that is not the first party's; return test targets."""
    if checked.data_set.distribution == FIRST_PARTY and checked.loss.distribution == FIRST_PARTY:
        return None
    rows = checked.network.spec.data.batch
    targets = None
    for split in (checked.data.train, checked.data.test):
        indices = np.arange(min(rows, len(split)))
        split.require_finite(indices, seed=0, epoch=0)
        targets = targets_of(split, indices)
    return targets


def _output(checked: Checked) -> Shape:
    (shape,) = checked.network.shapes[checked.network.graph.head].outputs
    return shape


def _try_loss(checked: Checked, targets: Tensor | None) -> None:
    """Call a loss as the training does: on random outputs; one of the first party's on zeros of the shapes that come.

    Raises:
        PluginError: it raised, is not finite, has no gradient, or breaks its contract.
        SpecError: one of the first party's cannot compare the head's outputs with such targets.
    """
    facts, shape = checked.data.facts, _output(checked)
    if checked.loss.distribution == FIRST_PARTY:
        targets = torch.zeros(_SAMPLES, *facts.target_shape, dtype=getattr(torch, facts.target_dtype))
        try:
            checked.built_loss(torch.zeros(_SAMPLES, *shape), targets)
        except PluginError as error:
            raise SpecError(_not_compared(checked, shape, error)) from error
        return
    assert targets is not None
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(len(targets), *shape, generator=generator).requires_grad_()
    with at_path("loss", "name"):
        value = checked.built_loss(output, targets)
        (gradient,) = torch.autograd.grad(value, output, allow_unused=True)
        if gradient is None or not bool(value.isfinite()) or not bool(gradient.isfinite().all()):
            found = (
                "has no gradient"
                if gradient is None
                else f"is {float(value.detach()):g}, or its gradient is not finite"
            )
            pair = f"outputs drawn from a normal distribution {list(output.shape)} and targets {list(targets.shape)}"
            raise PluginError(f"{checked.loss.owned} is broken: on {pair} it {found}", AUTHOR)
        meters = Meters(checked.loss.owned)
        metrics = checked.built_loss.metrics(output.detach(), targets)
        weight = target_weight(checked.built_loss, targets)
        meters.add(HeadResult(micro_batch=0, samples=len(targets), weight=weight, loss=value.detach(), metrics=metrics))
        meters.read()


def _not_compared(checked: Checked, shape: Shape, error: PluginError) -> Problem:
    head = checked.network.graph.nodes[checked.network.graph.head]
    outputs, targets = (list(one) or "one number" for one in (shape, checked.data.facts.target_shape))
    reason = error.problems[0].message.rpartition("Error: ")[2]
    return Problem(
        message=f'the head "{head.name}" has outputs {outputs} a sample, and the data set targets {targets}: {reason}',
        hint=f"change the head or its options, or {checked.loss}",
        path=head.path,
    )


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
