"""A loss is a scalar with a graph, the mean over samples; its metrics are sums over samples, however these are batched."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from attrs import frozen
from torch import Tensor

from petra_graph.blocks import Shape
from petra_graph.registry.built import loss_value_fault, metrics_fault, weight_fault
from petra_graph.registry.contracts import LOSSES, Declaration, Loss, mean_loss, target_weight
from petra_graph.registry.registry import Plugin
from petra_graph.testing.any_trial import PluginTrial, as_plugin, read_given
from petra_graph.testing.broken_promise import BrokenPromise, expect_close, name_of, relative_error
from petra_graph.testing.generators import moved_since, seeded, states

DrawTargets = Callable[[Tensor, torch.Generator], Tensor]
"""Draws the targets [n, ...] of outputs [n, ...]."""
_ROUNDED = 4
"""Units of rounding by which a loss that is returned in few digits may be off."""
_NEAR = 0.01
"""How far targets are from outputs that predict them well."""


def classes_of(output: Tensor, generator: torch.Generator) -> Tensor:
    """Draw class indices, int64 [n], or [n, ...] for outputs [n, classes, ...]; every second sample's are predicted.

    So a metric that counts right predictions is not 0 in every batch, where a mean would be its own sum.
    """
    shape = (output.shape[0], *output.shape[2:])
    drawn = torch.randint(output.shape[1], shape, generator=generator)
    drawn[::2] = output[::2].argmax(1)
    return drawn


def values_like(output: Tensor, generator: torch.Generator) -> Tensor:
    """Draw targets of the output's shape, standard normal; every second sample's are near its outputs."""
    drawn = torch.randn(output.shape, generator=generator)
    drawn[::2] = output[::2].to(drawn.dtype) + _NEAR * drawn[::2]
    return drawn


@frozen(kw_only=True)
class LossTrial(PluginTrial):
    """A loss with options, and the outputs and targets that it compares.

    Attributes:
        plugin: the loss.
        options: an instance of its own options class.
        output: shape of the head's output for one sample.
        targets: draws the targets of a batch: `classes_of`, `values_like`, or a function of one's own.
        samples: in a batch.
        seed: outputs and targets follow from it.
    """

    kind: ClassVar[str] = "loss"
    group: ClassVar[str] = LOSSES
    output: Shape = (10,)
    targets: DrawTargets = classes_of
    samples: int = 8
    seed: int = 0

    @staticmethod
    def of(
        loss: Declaration | Plugin,
        options: Mapping[str, Any] | object = None,
        *,
        output: Sequence[int] = (10,),
        targets: DrawTargets = classes_of,
        **settings: Any,
    ) -> LossTrial:
        """Make a trial of a declaration, with its `options` table; settings are attributes of the same name."""
        plugin = as_plugin(LOSSES, loss)
        read = read_given(plugin, options)
        return LossTrial(plugin=plugin, options=read, output=tuple(output), targets=targets, **settings)

    @property
    def about(self) -> str:
        """Its options and outputs, in words."""
        return f"outputs {list(self.output)}; {self.options}"

    def loss(self) -> Loss:
        """Return the loss, without a guard."""
        built: Loss = self.build_raw(self.options)
        return built

    def batch(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """Return outputs with a graph, and targets."""
        generator = torch.Generator().manual_seed(self.seed)
        output = torch.randn(self.samples, *self.output, generator=generator, dtype=torch.float64)
        return output.to(dtype).requires_grad_(), self.targets(output, generator)


def check_loss_construction(trial: LossTrial) -> None:
    """`build` returns a function with the method `metrics`; it has no parameters, since no optimizer would step them."""
    trial.build(trial.options)


def check_scalar(trial: LossTrial) -> None:
    """The loss is a finite scalar with a graph, in each type that a head has: its gradient is finite, and not zero."""
    remedy = "return the mean over the samples of a differentiable function of the output"
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        output, target = trial.batch(dtype)
        value = trial.loss()(output, target)
        fault = loss_value_fault(output, value)
        if fault:
            raise BrokenPromise("scalar", f"{fault} (outputs in {name_of(dtype)})", remedy)
        (gradient,) = torch.autograd.grad(value, output, allow_unused=True)
        if gradient is None or not gradient.count_nonzero():
            raise BrokenPromise("scalar", f"its gradient is zero (outputs in {name_of(dtype)})", remedy)
        if not value.isfinite() or not gradient.isfinite().all():
            raise BrokenPromise("scalar", f"it, or its gradient, is not finite (outputs in {name_of(dtype)})", remedy)


def check_mean(trial: LossTrial) -> None:
    """The loss of a batch is the mean of its samples' losses, by their `target_weight`: windows and replicas average so."""
    expect_mean(trial.loss(), *trial.batch())


def expect_mean(loss: Loss, output: Tensor, target: Tensor) -> None:
    """Compare the loss of a batch with the mean of its samples' losses.

    Raises:
        BrokenPromise: they differ by more than float32 explains.
    """
    samples = len(target)
    weights = _weights_of_rows(loss, target)
    whole = mean_loss(loss, output, target, sum(weights)).detach()
    alone = [
        mean_loss(loss, output[row : row + 1], target[row : row + 1], weight).detach()
        for row, weight in enumerate(weights)
    ]
    by = whole.new_tensor(weights)
    mean = (torch.stack(alone) * by).sum() / by.sum().clamp_min(torch.finfo(by.dtype).tiny)
    remedy = (
        "average over the samples, and let no sample's loss depend on the others of its batch; with weights of classes, or "
        "targets that are passed over, give the loss the method target_weight(target), which returns the sum of the weights "
        "that it divides by"
    )
    found = f"the loss of {samples} samples is {float(whole):.6g}, and the mean of theirs one by one {float(mean):.6g}"
    # beside the samples' own losses, so that a mean near zero is no measure of rounding
    one, other = [whole, *alone], [mean, *alone]
    if not relative_error(one, other) <= _ROUNDED * torch.finfo(whole.dtype).eps:  # not a number compares as false
        expect_close("mean over samples", found, one, other, dtype=torch.float32, remedy=remedy)


def check_weights(trial: LossTrial) -> None:
    """Where the loss has `target_weight`, it returns the sum of the samples' weights, numbers of at least 0."""
    _, target = trial.batch()
    expect_weights(trial.loss(), target)


def expect_weights(loss: Loss, target: Tensor) -> None:
    """Compare the weight of a batch with the sum of its samples' weights.

    Raises:
        BrokenPromise: they differ, or are no numbers of at least 0.
    """
    weights, whole = _weights_of_rows(loss, target), float(target_weight(loss, target))
    if not math.isclose(whole, sum(weights), rel_tol=torch.finfo(torch.float32).eps):
        found = (
            f"the weight of {len(target)} samples is {whole:.6g}, and the sum of theirs one by one {sum(weights):.6g}"
        )
        raise BrokenPromise("weights", found, "return the sum over the samples of this call")


def _weights_of_rows(loss: Loss, target: Tensor) -> list[float]:
    """Return the weight of each sample.

    Raises:
        BrokenPromise: one is no number of at least 0.
    """
    weights = [target_weight(loss, target[row : row + 1]) for row in range(len(target))]
    if fault := next(filter(None, map(weight_fault, weights)), ""):
        raise BrokenPromise("weights", fault, "return a number: the sum of the samples' weights")
    return [float(weight) for weight in weights]


def check_metrics(trial: LossTrial) -> None:
    """Metrics are scalars by name, sums over samples: the same for an evaluation in batches of any size."""
    output, target = trial.batch()
    expect_sums(trial.loss(), output.detach(), target)


def expect_sums(loss: Loss, output: Tensor, target: Tensor) -> None:
    """Compare the metrics of a batch with the sums over parts of it: uneven ones, one of a single sample.

    Raises:
        BrokenPromise: they differ by more than float32 explains, or are no finite scalars.
    """
    samples = len(target)
    first = max(1, 3 * samples // 8)
    whole = _metrics(loss, output, target)
    cuts = [cut for cut in (slice(0, first), slice(first, first + 1), slice(first + 1, None)) if len(target[cut])]
    parts = [_metrics(loss, output[part], target[part]) for part in cuts]
    if any(set(part) != set(whole) for part in parts):
        raise BrokenPromise(
            "metrics", "batches of other sizes have other metrics", "return the same names at every call"
        )
    for name, value in whole.items():
        total = torch.stack([part[name].double() for part in parts]).sum()
        if not value.isfinite():
            raise BrokenPromise("metrics", f'"{name}" is {float(value)}', "return finite sums")
        found = (
            f'"{name}" of {samples} samples is {float(value):.6g}, and the sum over batches of them {float(total):.6g}'
        )
        remedy = "return sums over the samples of this call alone; their means are taken when the evaluation has ended"
        expect_close("metrics", found, [value], [total], dtype=torch.float32, remedy=remedy)


def check_shares(trial: LossTrial) -> None:
    """What counts samples counts each at most once, so that a share is never above 1 (100 %)."""
    output, target = trial.batch()
    loss = trial.loss()
    weight = float(target_weight(loss, target))
    for name, value in _metrics(loss, output.detach(), target).items():
        share = float(value) / weight if weight else 0.0
        counts = name.startswith("top") or not value.is_floating_point()
        if counts and not 0 <= share <= 1:
            found = f'"{name}" counts {float(value):g} of {weight:g} samples, a share of {100 * share:.2f} %'
            remedy = "count samples; where a sample has many targets, return the mean over its own as a float"
            raise BrokenPromise("shares", found, remedy)


def check_untouched(trial: LossTrial) -> None:
    """Loss and metrics write to neither output nor target, draw no random numbers, and remember nothing."""
    expect_untouched(trial.loss(), *trial.batch())


def expect_untouched(loss: Loss, output: Tensor, target: Tensor) -> None:
    """Ask for loss and metrics again, with other states of the global generators.

    Raises:
        BrokenPromise: the loss is another one, or tensors or generators have changed.
    """
    before = output.detach().clone(), target.clone()
    generators = states()
    with seeded(1):
        first = loss(output, target).detach()
    with seeded(2):
        again = loss(output, target).detach()
    with torch.no_grad():
        loss.metrics(output, target)
    if not (torch.equal(output, before[0]) and torch.equal(target, before[1])):
        found = "the output or the target has other values afterwards"
        raise BrokenPromise(
            "untouched", found, "write y = f(x) for in-place operations: callbacks read the same tensors"
        )
    if not torch.equal(first, again) or moved_since(generators):
        found = "the same output and target have another loss when it is asked again"
        raise BrokenPromise("untouched", found, "draw no random numbers, and remember no batch")


def _metrics(loss: Loss, output: Tensor, target: Tensor) -> Mapping[str, Tensor]:
    with torch.no_grad():
        values = loss.metrics(output, target)
    fault = metrics_fault(values)
    graphs = [] if fault else [name for name, value in values.items() if value.requires_grad]
    if fault or graphs:
        found = fault or f'its metric "{graphs[0]}" has a graph'
        raise BrokenPromise("metrics", found, "return a dict of scalar tensors, made of output.detach()")
    return values
