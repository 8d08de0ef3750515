"""A loss: a scalar with a graph, the mean over samples; its metrics are sums over samples, however these are batched."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

from petra_graph.kinds.author_code import noted
from petra_graph.kinds.declaration import Declaration
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_kind import PluginKind, called
from petra_graph.kinds.tensor_trees import Tree, leaves, main

if TYPE_CHECKING:
    from torch import Tensor

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


def _used(plugin: Plugin, _arguments: Sequence[Any], built: Any) -> UsedLoss:
    return UsedLoss(plugin, built)


LOSS = PluginKind(
    noun="loss",
    plural="losses",
    group="petra_graph.losses",
    table="loss",
    declaration=LossDeclaration,
    form=called("options", "Loss"),
    used=_used,
)
