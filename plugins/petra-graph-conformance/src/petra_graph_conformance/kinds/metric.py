"""A metric: its values follow from all samples of an evaluation, however these are batched.

Decision: NaN breaks a promise, unless targets of a run's data alone cause it: then the metric is undefined on them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from attrs import evolve, field, frozen
from torch import Tensor

from petra_graph.errors import PluginError, shown
from petra_graph.kinds.generators import seeded
from petra_graph.kinds.metric import METRIC
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_kind import PluginKind
from petra_graph_conformance.broken_promise import BrokenPromise, expect_close
from petra_graph_conformance.declaration_promises import DECLARATION, PACKAGE
from petra_graph_conformance.moved_generators import moved_since, states
from petra_graph_conformance.outputs_and_targets import (
    OUTPUT_SETTINGS,
    DrawTargets,
    Shape,
    classes_of,
    likely_outputs,
    outputs_for,
    shape_of,
    values_like,
)
from petra_graph_conformance.plugin_trial import PluginTrial
from petra_graph_conformance.promise import KindChecks, Promise

_CONFIDENT = 6.0
"""The output of a class that is predicted, above the others' zeros."""


_SEEDS = 3
"""Draws for which right predictions must all be worse than wrong ones before a declared direction is doubted."""


_ROUNDED = 1e-4
"""The relative difference of a value that rounding explains."""
_FINITE = "return a finite number; NaN says that the metric is undefined on a split, as with targets of one class"


@frozen(kw_only=True)
class MetricTrial(PluginTrial):
    """A metric with options, and the outputs and targets that it sees.

    Attributes:
        plugin: the metric.
        options: an instance of its own options class.
        output: shape of the head's output for one sample.
        targets: draws the targets of a batch: `classes_of`, `values_like`, or a function of one's own.
        samples: of an evaluation.
        seed: outputs and targets follow from it.
        of_run: targets of a run's data, instead of drawn ones.
    """

    output: Shape = field(default=(10,), converter=shape_of)
    targets: DrawTargets = classes_of
    samples: int = 24
    seed: int = 0
    of_run: Tensor | None = field(default=None, repr=False, eq=False)

    @staticmethod
    def of_kind() -> PluginKind:
        return METRIC

    @property
    def about(self) -> str:
        return f"outputs {list(self.output)}; {self.options}"

    def batch(self) -> tuple[Tensor, Tensor]:
        """Return outputs in float32, and targets."""
        if self.of_run is not None:
            return outputs_for(self.output, self.of_run).detach(), self.of_run
        generator = torch.Generator().manual_seed(self.seed)
        output = torch.randn(self.samples, *self.output, generator=generator)
        return output, self.targets(output, generator)

    def value(self, output: Tensor, target: Tensor, *cuts: slice) -> Mapping[str, float]:
        """Return the values of a new metric, which sees these parts of the samples one after another, or all at once."""
        metric = self.build(self.options)
        for cut in cuts or (slice(None),):
            metric.update(output[cut], target[cut])
        values: Mapping[str, float] = metric.compute()
        return values

    def attempt(self) -> None:
        self.value(*self.batch())


def check_metric_construction(trial: MetricTrial) -> None:
    """`build` returns an object with the methods `update(output, target)` and `compute()`."""
    trial.build(trial.options)


def check_values(trial: MetricTrial) -> None:
    """`compute` returns a finite number, or several by name, without a graph; shares are between 0 and 1.

    Where targets of a run's data give NaN, as a ranking does if all of them have one class, others are drawn.
    """
    wrong = _not_finite(trial.value(*trial.batch()))
    if wrong and trial.of_run is not None:
        with suppress(PluginError):
            wrong = _not_finite(trial.value(*_of_every_class(trial, trial.of_run)))
            if wrong:
                raise BrokenPromise("values", wrong, _FINITE)
    elif wrong:
        raise BrokenPromise("values", wrong, _FINITE)


def _not_finite(values: Mapping[str, float]) -> str:
    wrong = [
        f"{shown(name)} is {value}" if name else f"its value is {value}"
        for name, value in values.items()
        if not math.isfinite(value)
    ]
    return " and ".join(wrong)


def _of_every_class(trial: MetricTrial, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Draw outputs and targets of a run's shapes and types, in which every class is there as far as there are samples."""
    output = torch.randn(len(targets), *trial.output, generator=torch.Generator().manual_seed(0))
    if targets.is_floating_point():
        return output, torch.rand(targets.shape, generator=torch.Generator().manual_seed(1)).round().to(targets.dtype)
    classes = trial.output[0] if trial.output else 2
    return output, (torch.arange(targets.numel()) % max(2, classes)).reshape(targets.shape).to(targets.dtype)


def check_any_batch_size(trial: MetricTrial) -> None:
    """The values of a split do not depend on the size of its batches: the state is over all samples, not over means of batches."""
    output, target = _right_ones_first(*trial.batch())
    whole = trial.value(output, target)
    cuts = [slice(0, 3), slice(3, 4), slice(4, None)]
    parts = trial.value(output, target, *(cut for cut in cuts if len(target[cut])))
    remedy = "keep counts or sums over all samples in update, and divide in compute"
    if parts.keys() != whole.keys():
        raise BrokenPromise("any batch size", "batches of other sizes have other values", "return the same names")
    for name, value in whole.items():
        if math.isfinite(value):
            found = f"{_named(name)} is {value:.6g} for one batch, and {parts[name]:.6g} in several batches"
            one, other = (torch.tensor([each], dtype=torch.float64) for each in (parts[name], value))
            expect_close("any batch size", found, [one], [other], dtype=torch.float32, remedy=remedy)


def _right_ones_first(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return samples in another order: of drawn ones, every second is predicted rightly, and batches that are alike hide a mean of means."""
    order = torch.cat([torch.arange(0, len(target), 2), torch.arange(1, len(target), 2)])
    return output[order], target[order]


def check_state_of_its_own(trial: MetricTrial) -> None:
    """Two metrics that are built from the same options share no state: each evaluation begins with nothing seen."""
    output, target = trial.batch()
    first, second = slice(0, len(target) // 2), slice(len(target) // 2, None)
    if not len(target[first]):
        return
    with seeded(1):
        alone = trial.value(output[second], target[second])
    with seeded(1):
        one, other = trial.build(trial.options), trial.build(trial.options)
        one.update(output[first], target[first])
        other.update(output[second], target[second])
        values = other.compute()
    if any(values.get(name) != value for name, value in alone.items() if math.isfinite(value)):
        found = "it has another value where another one of it has seen other samples before"
        remedy = (
            "make its state in __init__: nothing in the class, in the module, or in what `build` returns a second time"
        )
        raise BrokenPromise("state of its own", found, remedy)


def check_metric_untouched(trial: MetricTrial) -> None:
    """It writes to neither output nor target, and draws no random numbers: callbacks read the same tensors."""
    output, target = trial.batch()
    before, generators = (output.clone(), target.clone()), states()
    trial.value(output, target)
    if not (torch.equal(output, before[0]) and torch.equal(target, before[1])):
        found = "the output or the target has other values afterwards"
        raise BrokenPromise("untouched", found, "write y = f(x) for in-place operations")
    if moved := moved_since(generators):
        found = f"it moved the global generator of {' and '.join(moved)}, so that training is another one"
        raise BrokenPromise("untouched", found, "draw with a generator of its own, of a fixed seed")


def check_direction(trial: MetricTrial) -> None:
    """Right predictions are not worse than wrong ones, by what the declaration says is better."""
    sign = 1 if trial.declaration.better == "higher" else -1
    pairs = []
    for seed in range(_SEEDS):
        right, wrong, target = _right_and_wrong(evolve(trial, seed=seed))
        of_right, of_wrong = trial.value(right, target), trial.value(wrong, target)
        pairs += [(value, of_wrong.get(name, math.nan)) for name, value in of_right.items()]
    if all(sign * one < sign * other for one, other in pairs):
        best, worst = pairs[0]
        found = f"right predictions have {best:.6g}, wrong ones {worst:.6g}, and its declaration says better = {shown(trial.declaration.better)}"
        meant = "lower" if sign > 0 else "higher"
        raise BrokenPromise("direction", found, f"declare better = {shown(meant)}, by which `checkpoint.best` chooses")


def check_logits(trial: MetricTrial) -> None:
    """Of logits of classes, a metric takes the softmax or the order: adding 1 to all outputs changes nothing."""
    output, target = trial.batch()
    values, moved = trial.value(output, target), trial.value(output + 1, target)
    changed = [
        name for name, value in values.items() if not math.isclose(value, moved.get(name, math.nan), rel_tol=_ROUNDED)
    ]
    if changed:
        found = f"it reads outputs as they are: where 1 is added to all of them, {_named(changed[0])} is {moved[changed[0]]:.6g} in place of {values[changed[0]]:.6g}"
        raise BrokenPromise(
            "logits", found, "take output.softmax(1), where probabilities are meant: heads return logits"
        )


def _named(name: str) -> str:
    return shown(name) if name else "it"


def _right_and_wrong(trial: MetricTrial) -> tuple[Tensor, Tensor, Tensor]:
    output, target = trial.batch()
    if trial.targets is values_like:
        return target.clone(), target + 1 + output.abs(), target
    ones = torch.zeros_like(output)
    right, wrong = (ones.scatter(1, (target.unsqueeze(1) + shift) % output.shape[1], _CONFIDENT) for shift in (0, 1))
    return right, wrong, target


def _trials(plugin: Plugin, options: Any, given: Mapping[str, Any]) -> Sequence[MetricTrial]:
    return [MetricTrial.of(plugin, options, output=output, targets=draw) for output, draw in likely_outputs(given)]


METRIC_CHECKS = KindChecks(
    kind=METRIC,
    promises=(
        DECLARATION,
        PACKAGE,
        Promise("construction", check_metric_construction, foundation=True),
        Promise("values", check_values, foundation=True),
        Promise("untouched", check_metric_untouched),
        Promise("state of its own", check_state_of_its_own, foundation=True),
        Promise("any batch size", check_any_batch_size),
        Promise(
            "direction",
            check_direction,
            applies=lambda trial: trial.of_run is None and trial.targets in {classes_of, values_like},
        ),
        Promise(
            "logits",
            check_logits,
            doubt=True,
            applies=lambda trial: trial.of_run is None and trial.targets is classes_of and trial.output[0] > 1,
        ),
    ),
    trial=MetricTrial,
    trials=_trials,
    settings=OUTPUT_SETTINGS,
)
