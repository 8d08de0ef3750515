"""What is checked of an optimizer, a loss and a data set: that a run may be cut, batched and resumed anywhere."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from petra_graph.blocks.block_kinds import ParameterGroups
from petra_graph.errors import SpecError
from petra_graph.executor.state import SavedTensors, capture_optimizer, restore_groups, restore_optimizer
from petra_graph.executor.update import Updater
from petra_graph.plugins.contract import DATA_SET, LOSS, OPTIMIZER
from petra_graph.plugins.generators import seeded
from petra_graph.plugins.loss_and_metric import Loss, mean_loss, target_weight
from petra_graph.plugins.optimizer import rate_ratios
from petra_graph.plugins.stage_facts import DELAYED
from petra_graph.plugins.tensor_trees import Tree, main, mapped
from petra_graph.testing.promises import AnyTrial, NotTried, equal, expect, expect_close, generators_stay

_STEPS = 24
"""A look-ahead at every tenth step acts behind a cut."""


class _Trained:
    """An optimizer of a few parameters in the updater of a stage."""

    def __init__(self, trial: AnyTrial) -> None:
        draw = torch.Generator().manual_seed(trial.seed)
        shapes = ((4, 3), (2, 3, 3, 3), (4,), (2,))
        self.named = {str(shape): nn.Parameter(torch.randn(shape, generator=draw)) for shape in shapes}
        parameters, rate = list(self.named.values()), float(trial.plugin.options.lr)
        optimizer = trial.plugin.build(ParameterGroups(decayed=parameters[:2], undecayed=parameters[2:]), stage=DELAYED)
        ratios = rate_ratios(optimizer, rate)
        self.updater = Updater(parameters, optimizer, lambda _: rate or 0.01, None, ratios=ratios, stage=DELAYED)

    def step(self) -> None:
        drawn = torch.Generator().manual_seed(self.updater.updates)
        for one in self.updater.parameters:
            one.grad = torch.randn(one.shape, generator=drawn)
        self.updater.accumulated(self.updater.updates)
        self.updater.step()


def check_checkpoint(trial: OptimizerTrial) -> None:
    """A checkpoint, the `state` of each parameter and the values of groups, continues the run to the bit, whenever it is cut."""
    whole, cuts = _Trained(trial), list[_Trained]()
    for cut in range(_STEPS):
        saved, resumed = SavedTensors(), _Trained(trial)
        capture_optimizer(saved, whole.updater, whole.named)
        restore_optimizer(saved, resumed.updater, resumed.named, torch.device("cpu"))
        restore_groups(resumed.updater, saved.facts["groups"])
        resumed.updater.updates = cut
        for name, parameter in resumed.named.items():
            parameter.data.copy_(whole.named[name])
        cuts.append(resumed)
        whole.step()
    for cut, resumed in enumerate(cuts):
        for _ in range(cut, _STEPS):
            resumed.step()
        remedy = "keep what steers the steps in self.state[parameter]"
        found = f"a run that is resumed before step {cut + 1} comes to other parameters: {remedy}"
        expect(equal(whole.updater.parameters, resumed.updater.parameters), found)


class OptimizerTrial(AnyTrial):
    """An optimizer, of a few small parameters."""

    kind, checks = OPTIMIZER, (check_checkpoint,)


def check_mean_over_samples(trial: LossTrial) -> None:
    """The loss is the mean over samples, by their `target_weight`, and metrics are sums, however samples are batched."""
    loss: Loss = trial.plugin.build()
    draw = torch.Generator().manual_seed(trial.seed)
    output, target = torch.randn(8, 10, generator=draw), torch.randint(10, (8,), generator=draw)
    if trial.batch:
        output, target = trial.batch()
    output = mapped(lambda one: one.detach().double() if one.is_floating_point() else one, output)
    samples = len(main(target))
    parts = [slice(*bounds) for bounds in pairwise(sorted({0, 1, samples // 2, samples}))]
    cut = [[mapped(itemgetter(part), tree) for tree in (output, target)] for part in parts]
    weights = [float(target_weight(loss, of)) for _, of in cut]
    whole = mean_loss(loss, output, target, sum(weights))
    of_parts = [mean_loss(loss, one, of, weight).double() for (one, of), weight in zip(cut, weights, strict=True)]
    mean = sum(one * weight for one, weight in zip(of_parts, weights, strict=True)) / (sum(weights) or 1.0)
    found = f"the loss of {samples} samples is {float(whole):.6g}, and the mean over batches of them {float(mean):.6g}"
    message = f"{found}: a loss that weighs its targets says so, target_weight(target)"
    # Beside the losses of the parts, a mean that cancels to almost zero is compared at their scale.
    expect_close(message, [whole, *of_parts], [torch.as_tensor(mean), *of_parts], torch.float32)
    metrics = [loss.metrics(*pair) for pair in cut]
    for name, value in loss.metrics(output, target).items():
        summed = sum(float(part[name]) for part in metrics)
        message = f'the metric "{name}" of {samples} samples is {float(value):.6g}, and its sum over batches of them {summed:.6g}'
        expect_close(message, [value], [torch.tensor(summed)], torch.float32)


@frozen(kw_only=True)
class LossTrial(AnyTrial):
    """A loss; `batch` returns outputs and targets of some samples, by default of 8 samples, 10 outputs and a class each."""

    kind, checks = LOSS, (check_mean_over_samples,)
    batch: Callable[[], tuple[Tree, Tree]] | None = field(default=None, eq=False, repr=False)


def check_samples(trial: DataSetTrial) -> None:
    """A sample follows from (index, seed, epoch) alone: alone or among others, in any order, whatever generators stand at."""
    try:
        data = trial.plugin.build()
    except SpecError as error:
        raise NotTried(str(error)) from error

    def fetched(split: Any, rows: np.ndarray, *, epoch: int = 3, state: int = 1) -> list[Tensor]:
        with seeded(state), generators_stay("fetch moves"):
            return [one.clone() for one in tree_leaves(split.fetch(rows, seed=trial.seed, epoch=epoch))]

    for name in ("train", "test"):
        split = getattr(data, name)
        if hasattr(split, "in_epochs"):
            begun = [fetched(split.in_epochs(16), np.arange(16), epoch=0) for _ in range(2)]
            expect(equal(*begun), f"samples of `{name}` are others when the stream is iterated again")
            continue
        rows = np.random.default_rng(trial.seed).permutation(len(split))[:6]
        first, _ = fetched(split, rows), fetched(split, rows, epoch=4)
        # At another call, one by one, in another order, with generators elsewhere.
        single = [fetched(split, rows[at : at + 1], state=2) for at in reversed(range(len(rows)))]
        again = [torch.cat(parts[::-1]) for parts in zip(*single, strict=True)]
        remedy = "draw with np.random.default_rng([seed, epoch, index])"
        expect(equal(first, again), f"samples of `{name}` are others at another call, alone: {remedy}")


class DataSetTrial(AnyTrial):
    """A data set, opened with its options."""

    kind, checks = DATA_SET, (check_samples,)
