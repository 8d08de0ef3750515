"""A metric: a state over all samples of an evaluation, and the values that are computed of it when the last batch has been seen.

    metric = build(options)                        for each evaluation
    metric.update(output, target)                  for each of its batches, without gradients
    metric.compute()                               once: a number, or numbers by name

Decision: these are the methods of torchmetrics' classes, so that each of them is a metric. A new metric is built for every
evaluation, so no `reset` is called: whatever an author forgets to reset cannot reach the next evaluation.

Decision: NaN says that a metric is undefined on a split, as a ranking is where all samples have one class. A run warns, and the
evaluation is without that value. Before a run and in the kit NaN breaks a promise, unless targets of the data alone cause it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, get_args

from attrs import asdict, evolve, field, frozen

from petra_graph.errors import PluginError, shown
from petra_graph.kinds.author_code import author_code
from petra_graph.kinds.broken_promise import BrokenPromise, expect_close
from petra_graph.kinds.declaration import Declaration, described, expect_among
from petra_graph.kinds.declaration_promises import DECLARATION
from petra_graph.kinds.expected_calls import ExpectedCall, call_faults
from petra_graph.kinds.generators import moved_since, seeded, states
from petra_graph.kinds.loss import is_share
from petra_graph.kinds.outputs_and_targets import (
    OUTPUT_SETTINGS,
    DrawTargets,
    Shape,
    classes_of,
    likely_outputs,
    outputs_for,
    shape_of,
    values_like,
)
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_kind import Part, PluginKind, Promise, called
from petra_graph.kinds.plugin_trial import PluginTrial
from petra_graph.kinds.tensor_trees import Tree, shapes

if TYPE_CHECKING:
    from torch import Tensor

Better = Literal["higher", "lower"]
_SHARE_ROUNDING = 1e-6
_CONFIDENT = 6.0
"""The output of a class that is predicted, above the others' zeros."""
_SEEDS = 3
"""Draws for which right predictions must all be worse than wrong ones before a declared direction is doubted."""
_FINITE = "return a finite number; NaN says that the metric is undefined on a split, as with targets of one class"


@frozen(kw_only=True)
class Scale:
    """How the values of a metric are read.

    Attributes:
        better: which of two values is better.
        share: whether they are shares, from 0 to 1, which are shown as percentages.
    """

    better: Better = "higher"
    share: bool = False

    @property
    def largest_or_smallest(self) -> Literal["largest", "smallest"]:
        """The best value, as `checkpoint.best_is` says it."""
        return "largest" if self.better == "higher" else "smallest"


def scale_of(name: str, scales: Mapping[str, Scale]) -> Scale:
    """Return how a value is read.

    Args:
        name: as it is recorded: "test/f1", or "f1".
        scales: those of a run's metrics, by the names under which they are recorded; other values are of the loss.
    """
    bare = re.sub(r"^(train|test)/", "", name)
    of_loss = Scale(better="lower" if bare == "loss" else "higher", share=is_share(bare))
    return scales.get(bare.partition("/")[0], of_loss)


def scales_in(record: Any) -> dict[str, Scale]:
    """Return the scales of a run as its files have them; None: it has no metrics."""
    return {label: Scale(**values) for label, values in (record or {}).items()}


@frozen(kw_only=True)
class MetricDeclaration(Declaration):
    """A metric; `build` names a function (options) -> Metric.

    Attributes:
        better: which of two values is better, for `checkpoint.best` and early stopping.
        share: whether its values are shares, from 0 to 1, which are shown as percentages.
    """

    better: Better = "higher"
    share: bool = False

    def faults(self) -> Iterator[str]:
        yield from expect_among("better", self.better, get_args(Better))
        yield from expect_among("share", self.share, (True, False))

    @property
    def scale(self) -> Scale:
        return Scale(better=self.better, share=self.share)

    @property
    def abilities(self) -> tuple[str, ...]:
        return (f"{self.better} is better",)

    def record(self) -> dict[str, Any]:
        return asdict(self.scale)


class Metric(Protocol):
    """A metric of one evaluation. One that is a torch module is moved to the device of the outputs."""

    def update(self, output: Tensor, target: Tensor) -> Any:
        """Take a batch: outputs of the head [n, ...] and their targets [n, ...], both without a graph; not to be changed."""

    def compute(self) -> Tensor | float | Mapping[str, Tensor | float]:
        """Return the value over all batches: a number, or a scalar tensor; or several by their names."""
        ...


_CALLS = ExpectedCall("update", ("output", "target")), ExpectedCall("compute")


def _built_faults(_plugin: Plugin, _arguments: Sequence[Any], built: Any) -> Iterator[str]:
    for call in _CALLS:
        if isinstance(built, type) or not callable(getattr(built, call.method, None)):
            came = f"the class {built.__name__}" if isinstance(built, type) else described(built)
            yield f"its build returns {came}, not an object with the method {call}"
    yield from call_faults(built, _CALLS)


def values_fault(values: Any, *, share: bool) -> str:
    """Return why a metric cannot have computed these values; "" where it can."""
    if not isinstance(values, Mapping):
        return _value_fault("its value", values, share=share)
    if not values:
        return "it computes no value: {}"
    wrong = next((name for name in values if not isinstance(name, str) or not name), None)
    if wrong is not None:
        return f"one of its values is called {wrong!r}, which is not a name"
    return next(filter(None, (_value_fault(f"its value {shown(n)}", v, share=share) for n, v in values.items())), "")


def _value_fault(which: str, value: Any, *, share: bool) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        if value.dim():
            return (
                f"{which} is a tensor of shape {list(value.shape)}, not a scalar; several values are a mapping by name"
            )
        if value.requires_grad:
            return f"{which} has a graph, which would keep every batch in memory: compute it without gradients"
        if value.is_complex():
            return f"{which} is complex"
    elif isinstance(value, bool) or not isinstance(value, Real):
        return f"{which} is {described(value)}, not a number or a scalar tensor"
    number = float(value)
    if share and not math.isnan(number) and not -_SHARE_ROUNDING <= number <= 1 + _SHARE_ROUNDING:
        return f"{which} is {number:g}, and its declaration says that it is a share: from 0 to 1"
    return ""


@frozen(eq=False)
class _GuardedMetric:
    """A metric whose errors name it, and whose values are numbers by name; "" is the name of a single one."""

    plugin: Plugin
    metric: Metric

    def update(self, output: Tensor, target: Tree) -> None:
        import torch

        def failed() -> str:
            return f"{self.plugin.owned} failed on outputs {shapes(output)} and targets {shapes(target)}"

        with torch.no_grad(), author_code(failed, training=True):
            if isinstance(self.metric, torch.nn.Module):
                self.metric.to(output.device)
            self.metric.update(output, target)

    def compute(self) -> Mapping[str, float]:
        import torch

        with torch.no_grad(), author_code(f"{self.plugin.owned} failed to compute its value", training=True):
            values: Any = self.metric.compute()
        self.plugin.refuse(values_fault(values, share=cast(MetricDeclaration, self.plugin.declaration).share))
        return {name: float(one) for name, one in (values if isinstance(values, Mapping) else {"": values}).items()}


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
        import torch

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
    import torch

    output = torch.randn(len(targets), *trial.output, generator=torch.Generator().manual_seed(0))
    if targets.is_floating_point():
        return output, torch.rand(targets.shape, generator=torch.Generator().manual_seed(1)).round().to(targets.dtype)
    classes = trial.output[0] if trial.output else 2
    return output, (torch.arange(targets.numel()) % max(2, classes)).reshape(targets.shape).to(targets.dtype)


def check_any_batch_size(trial: MetricTrial) -> None:
    """The values of a split do not depend on the size of its batches: the state is over all samples, not over means of batches."""
    import torch

    output, target = trial.batch()
    whole = trial.value(output, target)
    cuts = [slice(0, 3), slice(3, 4), slice(4, None)]
    parts = trial.value(output, target, *(cut for cut in cuts if len(target[cut])))
    remedy = "keep counts or sums over all samples in update, and divide in compute"
    if parts.keys() != whole.keys():
        raise BrokenPromise("any batch size", "batches of other sizes have other values", "return the same names")
    for name, value in whole.items():
        if math.isfinite(value):
            found = f"{shown(name) if name else 'it'} is {value:.6g} for one batch, and {parts[name]:.6g} in several batches"
            one, other = (torch.tensor([each], dtype=torch.float64) for each in (parts[name], value))
            expect_close("any batch size", found, [one], [other], dtype=torch.float32, remedy=remedy)


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
    import torch

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


def _right_and_wrong(trial: MetricTrial) -> tuple[Tensor, Tensor, Tensor]:
    import torch

    output, target = trial.batch()
    if trial.targets is values_like:
        return target.clone(), target + 1 + output.abs(), target
    ones = torch.zeros_like(output)
    right, wrong = (ones.scatter(1, (target.unsqueeze(1) + shift) % output.shape[1], _CONFIDENT) for shift in (0, 1))
    return right, wrong, target


def _trials(plugin: Plugin, options: Any, given: Mapping[str, Any]) -> Sequence[MetricTrial]:
    return [MetricTrial.of(plugin, options, output=output, targets=draw) for output, draw in likely_outputs(given)]


def _declared(metric: Any, _: str) -> Mapping[str, Any]:
    found = {name: getattr(metric, name) for name in ("better", "share") if hasattr(metric, name)}
    of_torchmetrics = getattr(metric, "higher_is_better", None)
    return {"better": "lower"} | found if of_torchmetrics is False else found


_BATCH = "8 targets of the test data, or 2 where outputs are large"

METRIC = PluginKind(
    noun="metric",
    group="petra_graph.metrics",
    table="metric",
    several=True,
    declaration=MetricDeclaration,
    form=evolve(
        called(MetricDeclaration, "options", "Metric", methods=[call.method for call in _CALLS]), declared=_declared
    ),
    promises=(
        DECLARATION,
        Promise("construction", check_metric_construction, build="", before_run="", foundation=True),
        Promise(
            "values", check_values, build="every value but NaN", before_run=_BATCH, kit="24 samples", foundation=True
        ),
        Promise("untouched", check_metric_untouched, before_run=_BATCH, kit="24 samples"),
        Promise("state of its own", check_state_of_its_own, before_run=_BATCH, kit="two metrics", foundation=True),
        Promise(
            "any batch size", check_any_batch_size, before_run=_BATCH, kit="24 samples, whole and in three batches"
        ),
        Promise(
            "direction",
            check_direction,
            kit="right and wrong predictions, three times",
            applies=lambda trial: trial.of_run is None and trial.targets in {classes_of, values_like},
        ),
    ),
    trial=MetricTrial,
    trials=_trials,
    settings=OUTPUT_SETTINGS,
    built_faults=_built_faults,
    guard=_GuardedMetric,
    parts=(
        Part(
            kind="metric",
            summary="a metric over a whole evaluation",
            example="worst-class",
            suffix="metric",
            entry="declared:WorstClass",
            module=("metric.py", "The metric."),
            options="least = 2",
        ),
    ),
)
