"""A loss: a scalar with a graph, the mean over samples; its metrics are sums over samples, however these are batched."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from attrs import frozen

from petra_graph.errors import PluginError, shown
from petra_graph.kinds.author_code import author_code
from petra_graph.kinds.declaration import Declaration, described
from petra_graph.kinds.expected_calls import ExpectedCall, call_faults, function_faults
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_kind import PluginKind, called
from petra_graph.kinds.tensor_trees import Tree, leaves, main, shapes

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
RESERVED_METRICS = frozenset({"loss"})
"""Names that a run records itself, besides the metrics of its loss."""
_SHARE_ROUNDING = 1e-3
"""The rounding of a share that is a mean over a sample's targets, in float32."""
_CALLED, _METRICS = ExpectedCall("__call__", ("output", "target")), ExpectedCall("metrics", ("output", "target"))
OF_TARGETS = ("target_weight", "target_count")


@frozen(kw_only=True)
class LossDeclaration(Declaration):
    """A loss; `build` names a function (options) -> Loss.

    Attributes:
        logits: whether it reads outputs as logits of classes, whose softmax is a probability: `predict` and `export` say so.
    """

    logits: bool = False

    def faults(self) -> Iterator[str]:
        if not isinstance(getattr(self, "logits", None), bool):
            yield f"has logits = {self.logits!r}, not True or False"


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
    return of_targets(loss, "target_weight", target)


def target_count(loss: Loss, target: Tree, weight: float) -> float:
    """Return how many of a batch's targets, which the loss weighs so, its metrics count: the number of samples, where it does not say."""
    own = loss.loss if isinstance(loss, _GuardedLoss) else loss
    same = getattr(own, "target_count", None) == getattr(own, "target_weight", None)
    return weight if same else of_targets(loss, "target_count", target)


def of_targets(loss: Loss, name: str, target: Tree) -> float:
    stated: Callable[[Tree], float] | None = getattr(loss, name, None)
    first = main(target)
    return float(len(first)) if stated is None or first.is_meta else stated(target)


def mean_loss(loss: Loss, output: Tree, target: Tree, weight: float) -> Tensor:
    """Return the loss of a batch with this weight: 0 where nothing counts, for which torch's mean would be NaN."""
    return loss(output, target) if weight else (main(output) * 0.0).sum()


def _built_faults(_plugin: Plugin, _arguments: Sequence[Any], built: Any) -> Iterator[str]:
    """Yield what is wrong with what `build` returned: not called as a run calls it, or with parameters that nothing trains."""
    import torch

    if not callable(built):
        yield f"its build returns {described(built)}, not a function (output, target) -> mean loss"
    if not callable(getattr(built, "metrics", None)):
        yield f"its build returns {described(built)} without the method `metrics`"
    parameters = built.named_parameters() if isinstance(built, torch.nn.Module) else ()
    trained = [name for name, parameter in parameters if parameter.requires_grad]
    if trained:
        yield f"it has parameters that nothing trains: {', '.join(trained)}; let the head have them, or call requires_grad_(False)"
    if hasattr(built, "target_weight") != hasattr(built, "target_count"):
        there, missing = OF_TARGETS if hasattr(built, "target_weight") else OF_TARGETS[::-1]
        yield (
            f"it has {there} without {missing}: the one is what the loss weighs its targets, the other how many of them its metrics "
            "count, len(target) where they count samples; target_count = target_weight says that both are the same"
        )
    if inspect.isfunction(built):
        yield from function_faults(built, ExpectedCall("loss", _CALLED.positional))
        return
    forward = ExpectedCall("forward", _CALLED.positional) if isinstance(built, torch.nn.Module) else _CALLED
    yield from call_faults(built, [forward, _METRICS, *(ExpectedCall(name, ("target",)) for name in OF_TARGETS)])


def value_fault(output: Tree, value: Any) -> str:
    """Return why a value cannot be the loss of an output; "" where it can."""
    import torch

    if not isinstance(value, torch.Tensor):
        return f"it returns {described(value)}, not a tensor"
    if value.dim():
        return f"it returns a tensor of shape {list(value.shape)}, not a scalar: the mean over the samples"
    if not value.is_floating_point():
        return f"it returns a scalar of {value.dtype}, which has no gradient"
    if torch.is_grad_enabled() and any(one.requires_grad for one in leaves(output)) and not value.requires_grad:
        return "it returns a scalar without a graph, so nothing can be learnt: leave out detach(), item() and argmax()"
    return ""


def metrics_fault(values: Any) -> str:
    """Return why values cannot be the metrics of a loss; "" where they can."""
    import torch

    if not isinstance(values, Mapping):
        return (
            f"its metrics are {described(values)}, not a mapping from names to sums; return {{}} where there are none"
        )
    for name, value in values.items():
        if not isinstance(name, str) or name in RESERVED_METRICS:
            return f"one of its metrics is called {name!r}, which is not a name of their own"
        if not isinstance(value, torch.Tensor) or value.dim():
            came = f"of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else described(value)
            return f"its metric {shown(name)} is {came}, not a scalar tensor: the sum over the samples"
    return ""


def weight_fault(value: Any, name: str = "target_weight") -> str:
    """Return why a value cannot be the weight, or the number, of targets; "" where it can."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        return f"its {name} is {described(value)}, not a number"
    if not math.isfinite(number) or number < 0:
        return f"its {name} is {number}, not a finite number of at least 0"
    return ""


@frozen(eq=False)
class _GuardedLoss:
    """A loss of which every value is a scalar with a graph, whose metrics are scalars by name, and whose weights are numbers."""

    plugin: Plugin
    loss: Loss

    def __call__(self, output: Tree, target: Tree) -> Tensor:
        value = self._called(self.loss, output, target)
        self.plugin.refuse(value_fault(output, value))
        return value

    def metrics(self, output: Tree, target: Tree) -> Mapping[str, Tensor]:
        """Return the loss's metrics."""
        values = self._called(self.loss.metrics, output, target)
        self.plugin.refuse(metrics_fault(values))
        return values

    def target_weight(self, target: Tree) -> float:
        """Return the loss's weight of targets."""
        return self._of_targets("target_weight", target)

    def target_count(self, target: Tree) -> float:
        """Return the number of targets that the loss's metrics count."""
        return self._of_targets("target_count", target)

    def _of_targets(self, name: str, target: Tree) -> float:
        with author_code(lambda: f"{self.plugin.owned} failed on targets {shapes(target)}", training=True):
            value = of_targets(self.loss, name, target)
        self.plugin.refuse(weight_fault(value, name))
        return value

    def _called(self, function: Callable[[Tree, Tree], T], output: Tree, target: Tree) -> T:
        def failed() -> str:
            return f"{self.plugin.owned} failed on outputs {shapes(output)} and targets {shapes(target)}"

        with author_code(failed, training=True):
            return function(output, target)


def expect_share(owned: str, metric: str, value: float, samples: int, counts: float) -> None:
    """Refuse a share of the targets that is more than all of them, or less than none.

    Raises:
        PluginError: naming the loss as `owned` does.
    """
    if is_share(metric) and is_wrong_share(value, counts):
        counted = f"{samples} samples"
        if counts != samples:
            counted = f"{counted} with a target_count of {counts:g}"
        share = f", a share of {value / counts:.2%}" if counts else ""
        message = f'{owned} is broken: its metric "{metric}" is {value:g} of {counted}{share}'
        hint = "count each sample at most once; where a sample has many targets, add the share of them that are right"
        raise PluginError(message, hint)


def is_wrong_share(value: float, counted: float) -> bool:
    return not -_SHARE_ROUNDING * counted <= value <= (1 + _SHARE_ROUNDING) * counted


LOSS = PluginKind(
    noun="loss",
    plural="losses",
    group="petra_graph.losses",
    table="loss",
    declaration=LossDeclaration,
    form=called(LossDeclaration, "options", "Loss", methods=("__call__", "metrics")),
    built_faults=_built_faults,
    guard=_GuardedLoss,
)
