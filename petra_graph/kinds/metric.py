"""A metric: a state over all samples of an evaluation, and the values that are computed of it when the last batch has been seen.

    metric = build(options)                        for each evaluation
    metric.update(output, target)                  for each of its batches, without gradients
    metric.compute()                               once: a number, or numbers by name

Decision: these are the methods of torchmetrics' classes, so that each of them is a metric. A new metric is built for every
evaluation, so no `reset` is called: whatever an author forgets to reset cannot reach the next evaluation.

Decision: NaN says that a metric is undefined on a split, as a ranking is where all samples have one class. A run warns, and the
evaluation is without that value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from attrs import evolve, field, frozen

from petra_graph.kinds.author_code import noted
from petra_graph.kinds.declaration import Declaration
from petra_graph.kinds.loss import is_share
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_kind import PluginKind, called
from petra_graph.kinds.tensor_trees import Tree
from petra_graph.spec.bounds import OneOf

if TYPE_CHECKING:
    from torch import Tensor

Better = Literal["higher", "lower"]


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

    better: Better = field(default="higher", validator=OneOf(*get_args(Better)))
    share: bool = False

    @property
    def scale(self) -> Scale:
        return Scale(better=self.better, share=self.share)

    @property
    def abilities(self) -> tuple[str, ...]:
        return (f"{self.better} is better",)


class Metric(Protocol):
    """A metric of one evaluation. One that is a torch module is moved to the device of the outputs."""

    def update(self, output: Tensor, target: Tensor) -> Any:
        """Take a batch: outputs of the head [n, ...] and their targets [n, ...], both without a graph; not to be changed."""

    def compute(self) -> Tensor | float | Mapping[str, Tensor | float]:
        """Return the value over all batches: a number, or a scalar tensor; or several by their names."""
        ...


class UsedMetric:
    """A metric in an evaluation: its values are numbers by name, "" of a single one, and what it raises has a note that names it."""

    def __init__(self, plugin: Plugin, metric: Metric) -> None:
        self._metric, self._noted = metric, noted(f"{plugin.owned}, [[metric]]")

    def update(self, output: Tensor, target: Tree) -> None:
        import torch

        with torch.no_grad(), self._noted:
            if isinstance(self._metric, torch.nn.Module):
                self._metric.to(output.device)
            self._metric.update(output, target)

    def compute(self) -> Mapping[str, float]:
        import torch

        with torch.no_grad(), self._noted:
            values: Any = self._metric.compute()
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
    form=evolve(called("options", "Metric"), declared=_declared),
    used=lambda plugin, _, built: UsedMetric(plugin, built),
)
