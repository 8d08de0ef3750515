"""The kit's promises of losses, data sets and learning-rate schedules, tried on the run's own shapes, samples and updates.

Decision: only what holds wherever a plugin is right, and costs a few samples: what needs a second opening of the files, a pickled
copy, or a write into the fetched memory is left to `petra-graph check`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from petra_graph.blocks import Shape
from petra_graph.errors import Path, Problem
from petra_graph.registry.contracts import Loss
from petra_graph.registry.registry import Plugin
from petra_graph.testing.broken_promise import BrokenPromise
from petra_graph.testing.data_sets import expect_rows, expect_same_samples, expect_same_tests, expect_targets_alone
from petra_graph.testing.losses import expect_mean, expect_sums, expect_untouched, expect_weights
from petra_graph.testing.lr_schedules import expect_pure
from petra_graph.training.checked_data import CheckedData, CheckedSplit

_FETCHED = 2
"""Samples of a split that are fetched again and again."""
_SAMPLES, _LARGE = 8, 2**16
"""Of a loss's trial; of outputs larger than so many values, two."""
_RIGHT = 6.0
"""The output of a right class, above all that are drawn."""
_NEAR = 0.01
"""Of other outputs to their targets, and of a loss to the sum of its samples' losses."""


def broken_by_schedule(plugin: Plugin, rate: Callable[[int], float], asked: Sequence[int]) -> Iterator[Problem]:
    """Yield what a schedule does otherwise when it is asked again; `rate` is the run's, a multiple of its factor."""
    about = f"the run's {asked[-1] + 1:,} updates"
    for broken in _broken([partial(expect_pure, rate, asked, about)]):
        yield _problem(plugin, broken, ("lr_schedule", "name"))


def broken_by_data(plugin: Plugin, data: CheckedData) -> Iterator[Problem]:
    """Yield what the samples of either split depend on, beside their indices, the seed and the epoch: one problem, or none.

    Raises:
        RunFailed: some cannot be fetched, or are not what the data set declares.
    """
    checks: list[Callable[[], object]] = []
    for name, split in (("train", data.train), ("test", data.test)):
        indices = _some(split)
        split.require_finite(indices, seed=0, epoch=0)
        checks += [
            partial(each, name, split, indices) for each in (expect_rows, expect_same_samples, expect_targets_alone)
        ]
    checks.append(partial(expect_same_tests, data.test, _some(data.test)))
    found = list(_broken(checks))
    if found:  # the first explains the others
        names = dict.fromkeys(one.promise for one in found if one.promise != found[0].promise)
        yield _problem(plugin, found[0], ("data", "name"), list(names))


def _some(split: CheckedSplit) -> NDArray[np.intp]:
    return np.random.default_rng(0).choice(len(split), min(_FETCHED, len(split)), replace=False)


def broken_by_loss(plugin: Plugin, loss: Loss, shape: Shape, targets: Tensor) -> Iterator[Problem]:
    """Yield what a loss does otherwise on a batch than on its samples, or at a second time.

    Args:
        plugin: of the loss.
        loss: as it was built for the run.
        shape: of the head's output, without the batch dimension.
        targets: of the data set, as `targets_for_loss` returns them.
    """
    output = _outputs(shape, targets)
    checks: Sequence[Callable[[], object]] = (
        partial(expect_untouched, loss, output, targets),
        partial(expect_weights, loss, targets),
        partial(_expect_no_sum, loss, output, targets),
        partial(expect_sums, loss, output.detach(), targets),
    )
    for broken in _broken(checks):
        yield _problem(plugin, broken, ("loss", "name"))
        if broken.promise == "untouched":  # which explains the others
            return


def _expect_no_sum(loss: Loss, output: Tensor, targets: Tensor) -> None:
    """Check that a batch's loss is no sum over its samples, so that steps would grow with it.

    Losses that are another mean than that of their samples (weights of classes, padding, pairs within a batch) train as their authors
    mean, if not in the same way in batches of other sizes: `petra-graph check` says it.

    Raises:
        BrokenPromise: it is a sum.
    """
    try:
        expect_mean(loss, output, targets)
    except BrokenPromise:
        with torch.no_grad():
            alone = [loss(output[row : row + 1], targets[row : row + 1]) for row in range(len(targets))]
            if torch.isclose(loss(output, targets), torch.stack(alone).sum(), rtol=_NEAR):
                raise


def targets_for_loss(data: CheckedData, shape: Shape) -> Tensor:
    """Fetch the targets that a loss is tried with: spread over the test data, whose order may be that of classes.

    Those that losses pass over (-100) are given a class: a sample may have no other.

    Raises:
        RunFailed: some cannot be fetched, or are not what the data set declares.
    """
    count, samples = _SAMPLES if prod(shape) <= _LARGE else 2, len(data.test)
    indices = np.unique(np.linspace(0, samples - 1, min(count, samples)).astype(np.intp))
    targets = targets_of(data.test, indices)
    return targets if data.facts.classes is None else targets.clamp(min=0)


def targets_of(split: CheckedSplit, indices: NDArray[np.intp]) -> Tensor:
    """Fetch targets, without their samples where the split can; errors as `targets_for_loss`."""
    alone = split.fetch_targets
    return split.fetch(indices, seed=0, epoch=0)[1] if alone is None else alone(indices)


def _outputs(shape: Shape, targets: Tensor) -> Tensor:
    """Draw outputs, those of every second sample right or near, so that metrics that count them are not 0 throughout."""
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(len(targets), *shape, generator=generator)
    if targets.is_floating_point() and targets.shape == output.shape:
        output[::2] = targets[::2].float() + _NEAR * output[::2]
    elif targets.dtype == torch.int64 and targets.shape == (len(output), *output.shape[2:]):
        right = targets[::2].unsqueeze(1)
        if int(right.max()) < output.shape[1]:
            output[::2] = output[::2].scatter(1, right, _RIGHT)
    return output.requires_grad_()


def _broken(checks: Sequence[Callable[[], object]]) -> Iterator[BrokenPromise]:
    for check in checks:
        try:
            check()
        except BrokenPromise as broken:
            yield broken


def _problem(plugin: Plugin, broken: BrokenPromise, path: Path, others: Sequence[str] = ()) -> Problem:
    more = f" (and with it: {', '.join(others)})" if others else ""
    message = f"{plugin.owned} breaks a promise ({broken.promise}): {broken.found}{more}"
    return Problem(message=message, hint=broken.remedy, path=path)
