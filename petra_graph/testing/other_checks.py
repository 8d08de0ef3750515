"""What is checked of an optimizer, a loss and a data set: that a run may be cut, batched and resumed anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Self

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from petra_graph.blocks.block_kinds import ParameterGroups
from petra_graph.errors import SpecError
from petra_graph.plugins.contract import Plugin, PluginKind, build_plugin
from petra_graph.plugins.data_set import is_stream
from petra_graph.plugins.generators import seeded
from petra_graph.plugins.kinds import DATA_SET, LOSS, OPTIMIZER
from petra_graph.plugins.loss_and_metric import Loss, mean_loss, target_weight
from petra_graph.plugins.optimizer import rate_ratios, set_rates
from petra_graph.plugins.stage_facts import DELAYED
from petra_graph.plugins.tensor_trees import Tree, main, mapped
from petra_graph.testing.block_trial import NotTried, as_plugin, equal, expect, expect_close, generators

_STEPS = 25
"""What shows late: a look-ahead at every tenth step, a count that is not kept."""


@frozen(kw_only=True)
class OtherTrial:
    """A plugin of another kind than blocks, with its options."""

    plugin: Plugin
    options: Any
    seed: int = 0

    @classmethod
    def kind(cls) -> PluginKind:
        raise NotImplementedError

    @classmethod
    def of(cls, given: Any, options: Any = None, **more: Any) -> Self:
        """Make a trial of code or a declaration, with its `options` table; errors as of `as_plugin`."""
        plugin, options = as_plugin(cls.kind(), given, options)
        return cls(plugin=plugin, options=options, **more)


class OptimizerTrial(OtherTrial):
    """An optimizer, of a few small parameters."""

    @classmethod
    def kind(cls) -> PluginKind:
        return OPTIMIZER

    def built(self) -> tuple[list[nn.Parameter], torch.optim.Optimizer, Sequence[float]]:
        """Return new parameters, the same at every call, their optimizer, and the rates of its groups over `lr`."""
        draw = torch.Generator().manual_seed(self.seed)
        every = [nn.Parameter(torch.randn(shape, generator=draw)) for shape in ((4, 3), (2, 3, 3, 3), (4,), (2,))]
        groups = ParameterGroups(decayed=every[:2], undecayed=every[2:])
        optimizer = build_plugin(self.plugin, self.options, groups, stage=DELAYED)
        return every, optimizer, rate_ratios(optimizer, self.options.lr)


def check_checkpoint(trial: OptimizerTrial) -> None:
    """A checkpoint, the `state` of each parameter and the values of groups, continues the run to the bit."""
    every, optimizer, ratios = trial.built()

    def steps(numbers: Iterable[int], own: Sequence[nn.Parameter], by: torch.optim.Optimizer) -> None:
        for number in numbers:
            drawn = torch.Generator().manual_seed(trial.seed + 1 + number)
            for one in own:
                one.grad = torch.randn(one.shape, generator=drawn)
            set_rates(by, float(trial.options.lr) or 0.01, ratios, DELAYED.staleness_of_update(number))
            by.step()
            by.zero_grad(set_to_none=True)

    def stored(value: Any) -> Any:
        return value.detach().clone() if isinstance(value, Tensor) else json.loads(json.dumps(value))

    steps(range(_STEPS), every, optimizer)
    again, resumed, _ = trial.built()
    with torch.no_grad():
        for one, own in zip(every, again, strict=True):
            own.copy_(one)
            if one in optimizer.state:
                resumed.state[own] = {key: stored(value) for key, value in optimizer.state[one].items()}
    for group, of in zip(resumed.param_groups, optimizer.param_groups, strict=True):
        group |= {key: stored(value) for key, value in of.items() if key != "params"}
    steps(range(_STEPS, 2 * _STEPS), every, optimizer)
    steps(range(_STEPS, 2 * _STEPS), again, resumed)
    expect(
        equal(every, again),
        "a resumed run comes to other parameters: keep what steers the steps in self.state[parameter]",
    )


@frozen(kw_only=True)
class LossTrial(OtherTrial):
    """A loss, with outputs and targets.

    Attributes:
        batch: returns the outputs and the targets of some samples; None: of 8 samples, 10 outputs and a class each.
    """

    batch: Callable[[], tuple[Tree, Tree]] | None = field(default=None, eq=False, repr=False)

    @classmethod
    def kind(cls) -> PluginKind:
        return LOSS


def check_mean(trial: LossTrial) -> None:
    """The loss is the mean over samples, by their `target_weight`, and metrics are sums, however samples are batched."""
    loss: Loss = build_plugin(trial.plugin, trial.options)
    draw = torch.Generator().manual_seed(trial.seed)
    if trial.batch is None:
        output, target = torch.randn(8, 10, generator=draw), torch.randint(10, (8,), generator=draw)
    else:
        output, target = trial.batch()
    output = mapped(lambda one: one.detach().double() if one.is_floating_point() else one, output)
    samples = len(main(target))
    parts = [slice(0, 1), slice(1, samples // 2), slice(samples // 2, samples)]
    cut = [[mapped(itemgetter(part), tree) for tree in (output, target)] for part in parts]
    cut = [pair for pair in cut if len(main(pair[1]))]
    weights = [float(target_weight(loss, of)) for _, of in cut]
    whole = mean_loss(loss, output, target, sum(weights))
    alone = torch.stack(
        [mean_loss(loss, one, of, weight).double() for (one, of), weight in zip(cut, weights, strict=True)]
    )
    mean = (alone * torch.tensor(weights)).sum() / max(sum(weights), torch.finfo(torch.float64).tiny)
    message = (
        f"the loss of {samples} samples is {float(whole):.6g}, and the mean over batches of them {float(mean):.6g}: a loss that weighs "
        "its targets says so, target_weight(target)"
    )
    expect_close(message, [whole, *alone], [mean, *alone], torch.float32)
    values, of_parts = loss.metrics(output, target), [loss.metrics(*pair) for pair in cut]
    for name, value in values.items():
        total = sum(float(part[name]) for part in of_parts)
        message = f'the metric "{name}" of {samples} samples is {float(value):.6g}, and its sum over batches of them {total:.6g}'
        expect_close(message, [value], [torch.tensor(total)], torch.float32)


class DataSetTrial(OtherTrial):
    """A data set, opened with its options."""

    @classmethod
    def kind(cls) -> PluginKind:
        return DATA_SET


def check_samples(trial: DataSetTrial) -> None:
    """A sample follows from (index, seed, epoch) alone: alone or among others, in any order, whatever generators stand at."""
    try:
        data = build_plugin(trial.plugin, trial.options)
    except SpecError as error:
        raise NotTried(str(error)) from error
    for name in ("train", "test"):
        split = getattr(data, name)
        if is_stream(split):
            passes = []
            for _ in range(2):
                with seeded(trial.seed):
                    passes.append(tree_leaves(list(islice(split.iterate(seed=trial.seed, number=0), 16))))
            expect(equal(*passes), f"samples of `{name}` are others when the stream is iterated again")
            continue
        rows = np.random.default_rng(trial.seed).permutation(len(split))[:6]

        def fetched(some: np.ndarray, epoch: int, state: int, split: Any = split) -> list[Tensor]:
            with seeded(state):
                return [one.clone() for one in tree_leaves(split.fetch(some, seed=trial.seed, epoch=epoch))]

        first = fetched(rows, 3, 1)
        fetched(rows, 4, 1)
        message = f"samples of `{name}` are others {{}}: draw with np.random.default_rng([seed, epoch, index])"
        expect(equal(first, fetched(rows, 3, 2)), message.format("at the second call"))
        expect(equal(first, [one.flip(0) for one in fetched(rows[::-1], 3, 1)]), message.format("in another order"))
        single = [fetched(rows[at : at + 1], 3, 1) for at in range(len(rows))]
        expect(equal(first, [torch.cat(parts) for parts in zip(*single, strict=True)]), message.format("one by one"))
        before = generators()
        split.fetch(rows, seed=trial.seed, epoch=0)
        moved = [name for name, state in generators().items() if state != before[name]]
        expect(not moved, f"fetch moves the global generator of {' and '.join(moved)}")


OTHERS = {trial.kind().short: trial for trial in (OptimizerTrial, LossTrial, DataSetTrial)}
"""By the names of kinds on the command line."""
