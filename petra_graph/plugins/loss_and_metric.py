"""A loss: a scalar with a graph, the mean over samples; its metrics are sums over samples. And a metric of a whole evaluation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

from petra_graph.plugins.author_code import noted
from petra_graph.plugins.contract import Declaration, Plugin
from petra_graph.plugins.tensor_trees import Tree, leaves, main

if TYPE_CHECKING:
    from torch import Tensor
from typing import TYPE_CHECKING, Literal, get_args

from attrs import field

from petra_graph.spec.keys import OneOf

RESERVED_METRICS = frozenset({"loss"})
"""Names that a run records itself, besides the metrics of its loss."""
_OF_TARGETS = ("target_weight", "target_count")


@frozen(kw_only=True)
class LossDeclaration(Declaration):
    """A loss; `build` names a function (options) -> Loss.

    Attributes:
        logits: whether it reads outputs as logits of classes, whose softmax is a probability: `predict` and `export` say so.
    """

    logits: bool = False


class Loss(Protocol):
    """A loss: the mean over samples in training, and the counts of evaluation.

    A loss whose samples do not all count alike also has the method `target_weight(target) -> float`: the sum of their weights,
    on the CPU; a sample counts 1 where there is no reason for another number, and 0 if it is passed over. The loss is then the
    weighted mean; it is not asked for a batch of weight 0. Windows, replicas and evaluations divide by the sum of these
    weights, so that none of their means depends on how the samples are batched.

    Where the network returns several tensors, or a target is several, the loss is given them in the tuple or dictionary that they are in.

    It has `target_count(target) -> float` beside it: how many samples, or targets, its metrics count. Weights of classes weigh the
    loss alone, and padding is left out of both: then the one may be the other, `target_count = target_weight`.
    """

    def __call__(self, output: Tree, target: Tree) -> Tensor:
        """Return the mean loss over the samples, a scalar with a graph."""

    def metrics(self, output: Tree, target: Tree) -> Mapping[str, Tensor]:
        """Return sums over the samples, scalars without a graph: "top1" and "top5" count correct samples.

        Where a sample has several targets, it counts with the share of those that are correct. Each sum is divided by the number of
        samples, or by that of `target_count`.
        """


def is_share(metric: str) -> bool:
    """Whether a metric is a share of the targets, between 0 and 1: "top1", "top5"."""
    return re.fullmatch(r"top\d+", metric) is not None


def target_weight(loss: Loss, target: Tree) -> float:
    """Return what a loss weighs a batch's targets, on the CPU: the number of samples, where it has no `target_weight`.

    Targets without values, on the meta device, count in full.
    """
    return _of_targets(loss, "target_weight", target)


def target_count(loss: Loss, target: Tree, weight: float) -> float:
    """Return how many of a batch's targets, which the loss weighs so, its metrics count: the number of samples, where it does not say."""
    same = getattr(loss, "target_count", None) == getattr(loss, "target_weight", None)
    return weight if same else _of_targets(loss, "target_count", target)


def _of_targets(loss: Loss, name: str, target: Tree) -> float:
    stated: Callable[[Tree], float] | None = getattr(loss, name, None)
    first = main(target)
    return float(len(first)) if stated is None or first.is_meta else stated(target)


def mean_loss(loss: Loss, output: Tree, target: Tree, weight: float) -> Tensor:
    """Return the loss of a batch with this weight: 0 where nothing counts, for which torch's mean would be NaN."""
    return loss(output, target) if weight else (main(output) * 0.0).sum()


class UsedLoss:
    """A loss in a run: the first value is looked at, and what it raises has a note that names it."""

    def __init__(self, plugin: Plugin, loss: Loss) -> None:
        self._plugin, self._loss, self._seen = plugin, loss, False
        self._noted = noted(f"{plugin.owned}, loss.name")
        for name in _OF_TARGETS:
            if hasattr(loss, name):
                setattr(self, name, getattr(loss, name))

    def __call__(self, output: Tree, target: Tree) -> Tensor:
        with self._noted:
            value = self._loss(output, target)
        if not self._seen:
            self._expect_scalar(output, value)
            self._seen = True
        return value

    def metrics(self, output: Tree, target: Tree) -> Mapping[str, Tensor]:
        """Return the loss's metrics."""
        with self._noted:
            return self._loss.metrics(output, target)

    def _expect_scalar(self, output: Tree, value: Any) -> None:
        import torch

        if not isinstance(value, torch.Tensor) or value.dim() or not value.is_floating_point():
            came = (
                f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
                if isinstance(value, torch.Tensor)
                else type(value).__name__
            )
            raise self._plugin.broken(f"it returns {came}, not a scalar of real numbers: the mean over the samples")
        if torch.is_grad_enabled() and any(one.requires_grad for one in leaves(output)) and not value.requires_grad:
            raise self._plugin.broken("it returns a scalar without a graph, so nothing can be learnt")


def used_loss(plugin: Plugin, _arguments: Sequence[Any], built: Any) -> UsedLoss:
    return UsedLoss(plugin, built)


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


def declared_metric(metric: Any, _: str) -> Mapping[str, Any]:
    found = {name: getattr(metric, name) for name in ("better", "share") if hasattr(metric, name)}
    of_torchmetrics = getattr(metric, "higher_is_better", None)
    return {"better": "lower"} | found if of_torchmetrics is False else found
