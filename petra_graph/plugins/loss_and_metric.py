"""A loss: a scalar with a graph, the mean over samples; its metrics are sums over samples. And a metric of a whole evaluation.

Decision: the methods of a metric are `update` and `compute`, as torchmetrics' classes have them. A new metric is built for every evaluation, so no
`reset` is called: whatever an author forgets to reset cannot reach the next evaluation.

Decision: NaN says that a metric is undefined on a split, as a ranking is where all samples have one class. A run warns, and the evaluation is
without that value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from attrs import frozen

from petra_graph.errors import SpecError, kind_of
from petra_graph.plugins.author_code import noted
from petra_graph.plugins.tensor_trees import Tree, form, is_several, leaves, main, named_leaves

if TYPE_CHECKING:
    from torch import Tensor

    from petra_graph.plugins.contract import Plugin

_MOST = 5


def target_weight(loss: Loss, target: Tree, method: str = "target_weight") -> float:
    """Return what a loss weighs a batch's targets, on the CPU: the number of samples, where it does not say, or on the meta device."""
    stated, first = getattr(loss, method, None), main(target)
    return float(len(first) if stated is None or first.is_meta else stated(target))


def target_count(loss: Loss, target: Tree, weight: float) -> float:
    """Return how many of a batch's targets, which the loss weighs so, its metrics count: the number of samples, where it does not say."""
    same = getattr(loss, "target_count", None) == getattr(loss, "target_weight", None)
    return weight if same else target_weight(loss, target, "target_count")


def mean_loss(loss: Loss, output: Tree, target: Tree, weight: float) -> Tensor:
    """Return the loss of a batch with this weight: 0 where nothing counts, for which torch's mean would be NaN."""
    return loss(output, target) if weight else (main(output) * 0.0).sum()


def correct(output: Tensor, target: Tensor) -> Mapping[str, Tensor]:
    """Return the counts of samples whose target is the largest output ("top1"), or among the five largest ("top5") of more than five.

    Outputs are [n, classes, *]; targets are class indices [n, *], of which each counts with its share, or shares of the classes [n, classes].
    """
    ranked = output.detach().topk(min(_MOST, output.shape[1]), dim=1).indices
    shares = target.is_floating_point()
    hits = target.gather(1, ranked).double() if shares else ranked == target.unsqueeze(1)
    found = {"top1": hits[:, 0].sum(), **({"top5": hits.sum()} if output.shape[1] > _MOST else {})}
    each = target[0].numel()
    return found if shares or target.dim() == 1 else {name: count.double() / each for name, count in found.items()}


def _trained(loss: Any) -> list[str]:
    """Return what asks for gradients in a loss: parameters of a module, or of the attributes of any object."""
    if hasattr(loss, "named_parameters"):
        return [name for name, one in loss.named_parameters() if one.requires_grad]
    held = [(name, one) for name, value in getattr(loss, "__dict__", {}).items() for _, one in named_leaves(value)]
    # No other object is looked into: one that holds a module of Python would lead everywhere.
    return [
        name
        for name, one in held
        if getattr(one, "requires_grad", None) is True or (hasattr(one, "named_parameters") and _trained(one))
    ]


def reads_logits(plugin: Plugin) -> bool:
    """Whether a loss reads outputs as logits of classes, whose softmax is a probability: its attribute `logits`, or torch's cross-entropy."""
    of_torch = getattr(plugin.code, "__name__", "") in {"CrossEntropyLoss", "cross_entropy"}
    return bool(getattr(plugin.code, "logits", of_torch))


class Loss:
    """A loss in a run: a module is on the device of the outputs, and what it raises has a note that names it."""

    def __init__(self, plugin: Plugin, _: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._plugin, self._note = plugin, f"{plugin.owned}, loss.name"
        self._loss = loss = plugin.code(**options)
        for name in ("target_weight", "target_count"):
            if hasattr(loss, name):
                setattr(self, name, getattr(loss, name))
        if trained := _trained(loss):
            fault = f"it has parameters of its own, {', '.join(trained)}, which nothing trains"
            raise SpecError(f"{plugin}: {fault}", "let them be parameters of the network's head")

    def __call__(self, output: Tree, target: Tree) -> Tensor:
        import torch

        with noted(self._note):
            if hasattr(self._loss, "buffers"):
                self._loss.to(main(output).device)
            value: Tensor = self._loss(output, target)
        # Several values would silently be summed, and one without a graph would train nothing.
        scalar = isinstance(value, torch.Tensor) and not value.dim()
        trains = torch.is_grad_enabled() and not (scalar and value.requires_grad)
        if not scalar or (trains and any(one.requires_grad for one in leaves(output))):
            raise self._plugin.broken(f"it returns {form(value)}, not a scalar with a graph: the mean over the samples")
        return value

    def metrics(self, output: Tree, target: Tree) -> Mapping[str, Tensor]:
        """Return sums over the samples; of a loss that has no such method, `correct` if targets are classes."""
        with noted(self._note):
            if hasattr(self._loss, "metrics"):
                found: Mapping[str, Tensor] = self._loss.metrics(output, target)
                return found
            if is_several(output) or is_several(target) or target.is_floating_point():
                return {}
            # Class indices of the outputs, [n, classes, *] and [n, *].
            fits = output.ndim == target.ndim + 1 and output.shape[:1] + output.shape[2:] == target.shape
            return correct(output, target) if fits else {}


class Metric:
    """A metric in an evaluation: its values are numbers by name, "" of a single one."""

    def __init__(self, plugin: Plugin, _: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._metric, self._note = plugin.code(**options), f"{plugin.owned}, [[metric]]"
        if missing := [name for name in ("update", "compute") if not callable(getattr(self._metric, name, None))]:
            raise plugin.broken(f"what it builds, {kind_of(self._metric)}, has no {' and no '.join(missing)}")

    def update(self, output: Tensor, target: Tree) -> None:
        import torch

        with torch.no_grad(), noted(self._note):
            if isinstance(self._metric, torch.nn.Module):
                self._metric.to(output.device)
            self._metric.update(output, target)

    def compute(self) -> Mapping[str, float]:
        import torch

        with torch.no_grad(), noted(self._note):
            values: Any = self._metric.compute()
            return {name: float(one) for name, one in (values if isinstance(values, Mapping) else {"": values}).items()}


@frozen(kw_only=True)
class Scale:
    """How the values of a metric are read."""

    better: Literal["higher", "lower"] = "higher"
    share: bool = False  # whether they are shares, from 0 to 1, which are shown as percentages


def scale_in(plugin: Plugin) -> Scale:
    """Return how the values of a metric are read, by its class's attributes `better` and `share`, or torchmetrics' `higher_is_better`."""
    lower = getattr(plugin.code, "higher_is_better", None) is False
    better: Any = getattr(plugin.code, "better", "lower" if lower else "higher")
    if better not in ("higher", "lower"):  # checkpoint.best would silently be the worst
        raise plugin.broken(f"its `better` is {better!r}, not 'higher' or 'lower'")
    return Scale(better=better, share=getattr(plugin.code, "share", False))


def scale_of(name: str, scales: Mapping[str, Scale]) -> Scale:
    """Return how the value recorded as "test/f1" is read; `scales` are those of a run's metrics by their names, and other values are of the loss."""
    bare = re.sub(r"^(train|validation|test)/", "", name)
    of_loss = Scale(better="lower" if bare == "loss" else "higher", share=re.fullmatch(r"top\d+", bare) is not None)
    return scales.get(bare.partition("/")[0], of_loss)


def scales_in(record: Any) -> dict[str, Scale]:
    """Return the scales of a run as its files have them; None: it has no metrics."""
    return {label: Scale(**values) for label, values in (record or {}).items()}
