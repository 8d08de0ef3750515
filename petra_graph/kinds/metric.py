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
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, get_args

from attrs import asdict, evolve, frozen

from petra_graph.errors import shown
from petra_graph.kinds.author_code import author_code
from petra_graph.kinds.declaration import Declaration, described, expect_among
from petra_graph.kinds.expected_calls import ExpectedCall, call_faults
from petra_graph.kinds.loss import is_share
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_kind import PluginKind, called
from petra_graph.kinds.tensor_trees import Tree, shapes

if TYPE_CHECKING:
    from torch import Tensor

Better = Literal["higher", "lower"]
_SHARE_ROUNDING = 1e-6


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
    bare = re.sub(r"^(train|validation|test)/", "", name)
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


def _declared(metric: Any, _: str) -> Mapping[str, Any]:
    found = {name: getattr(metric, name) for name in ("better", "share") if hasattr(metric, name)}
    of_torchmetrics = getattr(metric, "higher_is_better", None)
    return {"better": "lower"} | found if of_torchmetrics is False else found


METRIC = PluginKind(
    noun="metric",
    group="petra_graph.metrics",
    table="metric",
    several=True,
    declaration=MetricDeclaration,
    form=evolve(
        called(MetricDeclaration, "options", "Metric", methods=[call.method for call in _CALLS]), declared=_declared
    ),
    built_faults=_built_faults,
    guard=_GuardedMetric,
)
