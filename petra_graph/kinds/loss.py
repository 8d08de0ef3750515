"""A loss: a scalar with a graph, the mean over samples; its metrics are sums over samples, however these are batched."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from attrs import field, frozen

from petra_graph.errors import PluginError, shown
from petra_graph.kinds.author_code import author_code
from petra_graph.kinds.broken_promise import BrokenPromise, all_equal, expect_close, name_of, relative_error
from petra_graph.kinds.declaration import Declaration, described
from petra_graph.kinds.declaration_promises import DECLARATION
from petra_graph.kinds.expected_calls import ExpectedCall, call_faults, function_faults
from petra_graph.kinds.generators import moved_since, seeded, states
from petra_graph.kinds.outputs_and_targets import (
    OUTPUT_SETTINGS,
    TARGETS,
    DrawTargets,
    classes_of,
    likely_outputs,
    of_shapes,
    outputs_for,
    shape_of,
)
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_kind import Part, PluginKind, Promise, called
from petra_graph.kinds.plugin_trial import PluginTrial
from petra_graph.kinds.tensor_trees import Tree, leaves, main, mapped, shapes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T = TypeVar("T")
RESERVED_METRICS = frozenset({"loss"})
"""Names that a run records itself, besides the metrics of its loss."""
_SHARE_ROUNDING = 1e-3
"""The rounding of a share that is a mean over a sample's targets, in float32."""
_ROUNDED = 4
"""Units of rounding by which a loss that is returned in few digits may be off."""
_NEAR = 0.01
"""How far a loss may be from the sum of its samples' losses, where it is a sum."""
_FAR, _GROWS = (1e3, 1e6), 100.0
"""How far outputs are moved down the gradient of a loss, and by how much more it falls at the second, where it has no bound."""
_SAME = 1e-5
"""The relative difference of a loss that rounding explains, in float32."""
_CALLED, _METRICS = ExpectedCall("__call__", ("output", "target")), ExpectedCall("metrics", ("output", "target"))
_OF_TARGETS = ("target_weight", "target_count")


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
    return _of_targets(loss, "target_weight", target)


def target_count(loss: Loss, target: Tree, weight: float) -> float:
    """Return how many of a batch's targets, which the loss weighs so, its metrics count: the number of samples, where it does not say."""
    own = loss.loss if isinstance(loss, _GuardedLoss) else loss
    same = getattr(own, "target_count", None) == getattr(own, "target_weight", None)
    return weight if same else _of_targets(loss, "target_count", target)


def _of_targets(loss: Loss, name: str, target: Tree) -> float:
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
        there, missing = _OF_TARGETS if hasattr(built, "target_weight") else _OF_TARGETS[::-1]
        yield (
            f"it has {there} without {missing}: the one is what the loss weighs its targets, the other how many of them its metrics "
            "count, len(target) where they count samples; target_count = target_weight says that both are the same"
        )
    if inspect.isfunction(built):
        yield from function_faults(built, ExpectedCall("loss", _CALLED.positional))
        return
    forward = ExpectedCall("forward", _CALLED.positional) if isinstance(built, torch.nn.Module) else _CALLED
    yield from call_faults(built, [forward, _METRICS, *(ExpectedCall(name, ("target",)) for name in _OF_TARGETS)])


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
            value = _of_targets(self.loss, name, target)
        self.plugin.refuse(weight_fault(value, name))
        return value

    def _called(self, function: Callable[[Tree, Tree], T], output: Tree, target: Tree) -> T:
        def failed() -> str:
            return f"{self.plugin.owned} failed on outputs {shapes(output)} and targets {shapes(target)}"

        with author_code(failed, training=True):
            return function(output, target)


@frozen(kw_only=True)
class LossTrial(PluginTrial):
    """A loss with options, and the outputs and targets that it compares.

    Attributes:
        plugin: the loss.
        options: an instance of its own options class.
        output: shape of the head's output for one sample; of several outputs, those shapes in their tuple or dictionary.
        targets: draws the targets of a batch: one of `TARGETS`, or a function of one's own.
        samples: in a batch.
        seed: outputs and targets follow from it.
        of_run: the loss as a run has built it, and targets of the run's data, instead of new ones.
        outputs: what the run's network returns for the samples of these targets; None: outputs are drawn.
        micro_batch: targets of a whole micro-batch of a run.
        head: draws outputs of a run's head.
    """

    output: Any = field(default=(10,), converter=shape_of)
    targets: DrawTargets = classes_of
    samples: int = 8
    seed: int = 0
    of_run: tuple[Loss, Tree] | None = field(default=None, repr=False, eq=False)
    outputs: Tree = field(default=None, repr=False, eq=False)
    micro_batch: Tensor | None = field(default=None, repr=False, eq=False)
    head: Callable[[], Tensor] | None = field(default=None, repr=False, eq=False)

    @staticmethod
    def of_kind() -> PluginKind:
        return LOSS

    @property
    def about(self) -> str:
        drawn = next((name for name, draw in TARGETS.items() if draw is self.targets is not classes_of), "")
        shape = self.output if isinstance(self.output, Mapping) else list(self.output)
        return f"outputs {shape}{drawn and f', targets {drawn}'}; {self.options}"

    def loss(self) -> Loss:
        """Return the loss, without a guard; the loss of a run keeps its guard."""
        built: Loss = self.build_raw(self.options) if self.of_run is None else self.of_run[0]
        return built

    def batch(self, dtype: torch.dtype | None = None) -> tuple[Tree, Tree]:
        """Return outputs with a graph, float64 unless another type is given, and targets."""
        import torch

        if self.of_run is not None:
            drawn = (
                outputs_for(self.output, main(self.of_run[1])) if self.outputs is None else mapped(_leaf, self.outputs)
            )
            return drawn, self.of_run[1]
        generator = torch.Generator().manual_seed(self.seed)
        output = of_shapes(
            self.output, lambda shape: torch.randn(self.samples, *shape, generator=generator, dtype=torch.float64)
        )
        return mapped(lambda one: one.to(dtype or torch.float64).requires_grad_(), output), self.targets(
            output, generator
        )

    def attempt(self) -> None:
        loss, (output, target) = self.loss(), self.batch()
        loss(output, target)
        with author_code(self.plugin.owned):  # its metrics fail on what the loss itself takes
            loss.metrics(_detached(output), target)


def _leaf(stream: Tensor) -> Tensor:
    found = stream.detach().clone()
    return found.requires_grad_(found.is_floating_point())


def _detached(output: Tree) -> Tree:
    return mapped(lambda one: one.detach(), output)


def _rows(tree: Tree, rows: slice) -> Tree:
    return mapped(lambda one: one[rows], tree)


def _gradients(value: Tensor, output: Tree) -> list[Tensor]:
    """Return the gradients of a loss with respect to the outputs that it depends on."""
    import torch

    reads = [one for one in leaves(output) if one.requires_grad]
    return [one for one in torch.autograd.grad(value, reads, allow_unused=True) if one is not None]


def check_loss_construction(trial: LossTrial) -> None:
    """`build` returns a function with the method `metrics`; it has no parameters, since no optimizer would step them."""
    trial.build(trial.options)


def check_scalar(trial: LossTrial) -> None:
    """The loss is a finite scalar with a graph, in each type that a head has: its gradient is finite, and not zero."""
    import torch

    if trial.micro_batch is not None:
        _try_micro_batch(trial, trial.micro_batch)
        return
    remedy = "return the mean over the samples of a differentiable function of the output"
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        output, target = trial.batch(dtype)
        value = trial.loss()(output, target)
        fault = value_fault(output, value)
        if fault:
            raise BrokenPromise("scalar", f"{fault} (outputs in {name_of(dtype)})", remedy)
        gradients = _gradients(value, output)
        if not any(one.count_nonzero() for one in gradients):
            raise BrokenPromise("scalar", f"its gradient is zero (outputs in {name_of(dtype)})", remedy)
        if not all(one.isfinite().all() for one in (value, *gradients)):
            raise BrokenPromise("scalar", f"it, or its gradient, is not finite (outputs in {name_of(dtype)})", remedy)


def _try_micro_batch(trial: LossTrial, targets: Tensor) -> None:
    """Call a run's loss as the training does, on random outputs and a micro-batch of the data's targets.

    Raises:
        PluginError: it raised, is not finite, has no gradient, or breaks its contract.
    """
    import torch

    loss = trial.loss()
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(len(targets), *trial.output, generator=generator).requires_grad_()
    value = loss(output, targets)
    (gradient,) = torch.autograd.grad(value, output, allow_unused=True)
    if gradient is None or not bool(value.isfinite()) or not bool(gradient.isfinite().all()):
        found = f"is {float(value.detach()):g}, or its gradient is not finite"
        pair = f"outputs drawn from a normal distribution {list(output.shape)} and targets {list(targets.shape)}"
        raise trial.plugin.broken(f"on {pair} it {found if gradient is not None else 'has no gradient'}")
    counted = target_count(loss, targets, target_weight(loss, targets))
    for name, metric in loss.metrics(output.detach(), targets).items():
        expect_share(trial.plugin.owned, name, float(metric), len(targets), counted)


def expect_share(owned: str, metric: str, value: float, samples: int, counts: float) -> None:
    """Refuse a share of the targets that is more than all of them, or less than none.

    Raises:
        PluginError: naming the loss as `owned` does.
    """
    if is_share(metric) and _wrong_share(value, counts):
        counted = f"{samples} samples"
        if counts != samples:
            counted = f"{counted} with a target_count of {counts:g}"
        share = f", a share of {value / counts:.2%}" if counts else ""
        message = f'{owned} is broken: its metric "{metric}" is {value:g} of {counted}{share}'
        hint = "count each sample at most once; where a sample has many targets, add the share of them that are right"
        raise PluginError(message, hint)


def _wrong_share(value: float, counted: float) -> bool:
    return not -_SHARE_ROUNDING * counted <= value <= (1 + _SHARE_ROUNDING) * counted


def check_bounded(trial: LossTrial) -> None:
    """The loss does not fall without bound where outputs follow its gradient: a sign may be wrong.

    A loss that refuses outputs so far away is let be.
    """
    import torch

    loss, (output, target) = trial.loss(), trial.batch()
    value = loss(output, target)
    gradients = iter(torch.autograd.grad(value, leaves(output), allow_unused=True, materialize_grads=True))
    down, falls = mapped(lambda _: next(gradients), output), [0.0, 0.0]
    norm = torch.stack([one.norm() for one in leaves(down)]).norm()
    with suppress(Exception), torch.no_grad():
        falls = [float(value - loss(_moved(output, down, length / norm), target)) for length in _FAR]
    if falls[1] > _GROWS * falls[0] > 0:
        moved = " and ".join(
            f"by {fall:.3g} where they move by {length:g}" for fall, length in zip(falls, _FAR, strict=True)
        )
        remedy = "see its sign"
        raise BrokenPromise("bounded", f"down the gradient of its outputs it falls {moved}", remedy)


def _moved(output: Tree, down: Tree, length: Tensor) -> Tree:
    steps = iter(leaves(down))
    return mapped(lambda one: one - length * next(steps), output)


def check_logits(trial: LossTrial) -> None:
    """A loss that takes the softmax of outputs is not given probabilities: of a softmax twice, gradients are small."""
    import torch

    if trial.head is None:
        return
    output = trial.head()
    ones = [
        torch.isclose(output.sum(dim), output.new_ones(())).all() for dim in {1, output.dim() - 1} if output.dim() > 1
    ]
    if not any(ones) or bool((output < 0).any()):
        return
    loss, target = trial.loss(), trial.batch()[1][: len(output)]
    same = False
    with suppress(Exception), torch.no_grad():
        same = bool(torch.isclose(loss(output, target), loss(output + 1, target), rtol=_SAME))
    if same:
        found = "the head returns probabilities, which sum to 1, and this loss takes their softmax: adding 1 to all does not change it"
        raise BrokenPromise("logits", found, "leave out the head's softmax")


def check_mean(trial: LossTrial) -> None:
    """The loss of a batch is the mean of its samples' losses, by their `target_weight`: windows and replicas average so.

    In a run it must only not be their sum, so that steps would grow with the batch; another value is a doubt, "sample by sample".
    """
    import torch

    loss, (output, target) = trial.loss(), trial.batch()
    try:
        _expect_mean(loss, output, target)
    except BrokenPromise:
        if trial.of_run is None:
            raise
        with torch.no_grad():
            alone = [loss(_rows(output, one), _rows(target, one)) for one in _each_row(target)]
            if torch.isclose(loss(output, target), torch.stack(alone).sum(), rtol=_NEAR):
                raise


def check_sample_by_sample(trial: LossTrial) -> None:
    """Before a run: no sample's output is compared with another's target, as outputs [n, 1] less targets [n] would be, which are [n, n].

    Losses that are another mean than that of their samples (weights of classes, padding, pairs within a batch) train as their authors
    mean, if not in the same way in batches of other sizes.
    """
    try:
        _expect_mean(trial.loss(), *trial.batch())
    except BrokenPromise as broken:
        output, target = map(shapes, trial.batch())
        found = f"{broken.found}, for outputs {output} and targets {target}"
        remedy = "see that their shapes agree (output.squeeze(1) of one output a sample), and that no sample's loss depends on another"
        raise BrokenPromise("sample by sample", found, remedy) from broken


def _each_row(target: Tree) -> Iterator[slice]:
    return (slice(row, row + 1) for row in range(len(main(target))))


def _expect_mean(loss: Loss, output: Tree, target: Tree) -> None:
    import torch

    samples = len(main(target))
    weights = _of_rows(loss, "target_weight", target)
    whole = mean_loss(loss, output, target, sum(weights)).detach()
    alone = [
        mean_loss(loss, _rows(output, one), _rows(target, one), weight).detach()
        for one, weight in zip(_each_row(target), weights, strict=True)
    ]
    by = whole.new_tensor(weights)
    mean = (torch.stack(alone) * by).sum() / by.sum().clamp_min(torch.finfo(by.dtype).tiny)
    remedy = (
        "average over the samples, and let no sample's loss depend on the others of its batch; with weights of classes, or "
        "targets that are passed over, give the loss the method target_weight(target), which returns the sum of the weights "
        "that it divides by, and target_count(target), how many targets its metrics count"
    )
    found = f"the loss of {samples} samples is {float(whole):.6g}, and the mean of theirs one by one {float(mean):.6g}"
    # relative to the samples' own losses, since a mean near zero is not a measure of rounding
    one, other = [whole, *alone], [mean, *alone]
    if not relative_error(one, other) <= _ROUNDED * torch.finfo(whole.dtype).eps:  # not a number compares as false
        expect_close("mean over samples", found, one, other, dtype=torch.float32, remedy=remedy)


def check_weights(trial: LossTrial) -> None:
    """Where the loss has `target_weight` and `target_count`, they return sums over the samples, numbers of at least 0."""
    import torch

    loss, (_, target) = trial.loss(), trial.batch()
    for name in _OF_TARGETS:
        each, whole = _of_rows(loss, name, target), float(_of_targets(loss, name, target))
        if not math.isclose(whole, sum(each), rel_tol=torch.finfo(torch.float32).eps):
            found = f"the {name} of {len(main(target))} samples is {whole:.6g}, and the sum of theirs one by one {sum(each):.6g}"
            raise BrokenPromise("weights", found, "return the sum over the samples of this call")


def _of_rows(loss: Loss, name: str, target: Tree) -> list[float]:
    """Return the weight or the count of each sample.

    Raises:
        BrokenPromise: one is not a number of at least 0.
    """
    values = [_of_targets(loss, name, _rows(target, one)) for one in _each_row(target)]
    if fault := next((fault for value in values if (fault := weight_fault(value, name))), ""):
        raise BrokenPromise("weights", fault, "return a number: a sum over the samples")
    return [float(value) for value in values]


def check_metrics(trial: LossTrial) -> None:
    """Metrics are scalars by name, sums over samples: the same for an evaluation in batches of any size."""
    import torch

    loss, (output, target) = trial.loss(), trial.batch()
    output = _detached(output)
    samples = len(main(target))
    first = max(1, 3 * samples // 8)
    whole = _metrics(loss, output, target)
    cuts = [cut for cut in (slice(0, first), slice(first, first + 1), slice(first + 1, None)) if range(samples)[cut]]
    parts = [_metrics(loss, _rows(output, part), _rows(target, part)) for part in cuts]
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
    counted = float(target_count(loss, target, target_weight(loss, target)))
    for name, value in _metrics(loss, _detached(output), target).items():
        counts = is_share(name) or not value.is_floating_point()
        if counts and counted and _wrong_share(float(value), counted):
            share = 100 * float(value) / counted
            found = f'"{name}" counts {float(value):g} of {counted:g} samples, a share of {share:.2f} %'
            remedy = "count samples; where a sample has many targets, return the mean over its own as a float"
            raise BrokenPromise("shares", found, remedy)


def check_untouched(trial: LossTrial) -> None:
    """Loss and metrics write to neither output nor target, draw no random numbers, and remember nothing."""
    import torch

    loss, (output, target) = trial.loss(), trial.batch()
    before = [one.detach().clone() for one in (*leaves(output), *leaves(target))]
    generators = states()
    with seeded(1):
        first = loss(output, target).detach()
    with seeded(2):
        again = loss(output, target).detach()
    with torch.no_grad():
        loss.metrics(output, target)
    if not all_equal([*leaves(output), *leaves(target)], before):
        found = "the output or the target has other values afterwards"
        raise BrokenPromise(
            "untouched", found, "write y = f(x) for in-place operations: callbacks read the same tensors"
        )
    if not torch.equal(first, again) or moved_since(generators):
        found = "the same output and target have another loss when it is asked again"
        raise BrokenPromise("untouched", found, "draw no random numbers, and remember no batch")


def _metrics(loss: Loss, output: Tree, target: Tree) -> Mapping[str, Tensor]:
    import torch

    with torch.no_grad():
        values = loss.metrics(output, target)
    fault = metrics_fault(values)
    graphs = [] if fault else [name for name, value in values.items() if value.requires_grad]
    if fault or graphs:
        found = fault or f'its metric "{graphs[0]}" has a graph'
        raise BrokenPromise("metrics", found, "return a dict of scalar tensors, made of output.detach()")
    return values


def _trials(plugin: Plugin, options: Any, given: Mapping[str, Any]) -> Sequence[LossTrial]:
    return [LossTrial.of(plugin, options, output=output, targets=draw) for output, draw in likely_outputs(given)]


_BATCH = "a batch of 8 targets of the test data, or 2 where outputs are large"

LOSS = PluginKind(
    noun="loss",
    plural="losses",
    group="petra_graph.losses",
    table="loss",
    declaration=LossDeclaration,
    form=called(LossDeclaration, "options", "Loss", methods=("__call__", "metrics")),
    promises=(
        DECLARATION,
        Promise("construction", check_loss_construction, build="", foundation=True),
        Promise(
            "scalar",
            check_scalar,
            build="every value",
            before_run="a micro-batch, with its shares",
            kit="three types",
            foundation=True,
        ),
        Promise("untouched", check_untouched, before_run=_BATCH),
        Promise("bounded", check_bounded, before_run=_BATCH, doubt=True),
        Promise("logits", check_logits, before_run="two outputs of the head", kit=None, doubt=True),
        Promise("weights", check_weights, build="every value", before_run=_BATCH),
        Promise("mean over samples", check_mean, before_run=f"{_BATCH}: no sum"),
        Promise("sample by sample", check_sample_by_sample, before_run=_BATCH, kit=None, doubt=True),
        Promise("metrics", check_metrics, build="every value", before_run=_BATCH),
        Promise("shares", check_shares, build="every mean that a run takes"),
    ),
    trial=LossTrial,
    trials=_trials,
    settings=OUTPUT_SETTINGS,
    built_faults=_built_faults,
    guard=_GuardedLoss,
    parts=(
        Part(
            kind="loss",
            summary="a loss with its metrics",
            example="wide-margin",
            suffix="loss",
            entry="declared:WideMargin",
            module=("loss.py", "The loss."),
            options="margin = 1.0",
        ),
    ),
)
