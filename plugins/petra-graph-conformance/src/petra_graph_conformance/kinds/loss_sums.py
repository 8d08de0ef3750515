"""A loss is the mean over samples, and its metrics are sums over them, however these are batched."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from petra_graph.kinds.loss import (
    OF_TARGETS,
    Loss,
    is_share,
    is_wrong_share,
    mean_loss,
    metrics_fault,
    of_targets,
    target_count,
    target_weight,
    weight_fault,
)
from petra_graph.kinds.tensor_trees import Tree, main, shapes
from petra_graph_conformance.broken_promise import BrokenPromise, expect_close, relative_error
from petra_graph_conformance.kinds.loss_trial import LossTrial, detached, rows_of

_ROUNDED = 4
"""Units of rounding by which a loss that is returned in few digits may be off."""
_NEAR = 0.01
"""How far a loss may be from the sum of its samples' losses, where it is a sum."""
_WEIGHTS = (
    "with weights of classes, or targets that are passed over, give the loss the method target_weight(target), which returns the "
    "sum of the weights that it divides by, and target_count(target), how many targets its metrics count"
)
_OF_CLASSES = (
    "give the loss the method target_weight(target), which returns float(weights[target].sum()), so that windows, replicas and "
    "evaluations divide by it; and target_count(target), which returns len(target)"
)


def check_mean(trial: LossTrial) -> None:
    """The loss of a batch is the mean of its samples' losses, by their `target_weight`: windows and replicas average so.

    In a run it must only not be their sum, so that steps would grow with the batch; another value is a doubt, "sample by sample".
    """
    loss, (output, target) = trial.loss(), trial.batch()
    try:
        _expect_mean(loss, output, target)
    except BrokenPromise:
        if trial.of_run is None:
            raise
        with torch.no_grad():
            alone = [loss(rows_of(output, one), rows_of(target, one)) for one in _each_row(target)]
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
        if broken.remedy == _OF_CLASSES:
            raise BrokenPromise("sample by sample", broken.found, _OF_CLASSES) from broken
        output, target = map(shapes, trial.batch())
        found = f"{broken.found}, for outputs {output} and targets {target}"
        remedy = (
            "see that their shapes agree (output.squeeze(1) of one output a sample), and that no sample's loss depends on another; "
            f"{_WEIGHTS}"
        )
        raise BrokenPromise("sample by sample", found, remedy) from broken


def _class_weights(loss: Loss, output: Tree, target: Tree) -> str:
    """Return by how much the loss weighs one class more than another, as a clause; "" where it does not weigh classes.

    Two samples have the loss (w l + v k) / (w + v), and samples of the same classes with other outputs the same v / w.
    """
    if (
        not isinstance(output, Tensor)
        or not isinstance(target, Tensor)
        or target.is_floating_point()
        or target.dim() != 1
    ):
        return ""
    others = [row for row in range(1, len(target)) if target[row] != target[0]]
    if not others:
        return ""
    pair = target[[0, others[0]]]

    def ratio(rows: Tensor) -> float:
        first, second = (loss(rows[at : at + 1], pair[at : at + 1]) for at in range(2))
        both = loss(rows, pair)
        return float((first - both) / (both - second))

    with torch.no_grad():
        rows = output.detach()[[0, others[0]]]
        found, again = ratio(rows), ratio(rows.flip(0) * 0.5)
    same = 0 < found < math.inf and math.isclose(found, again, rel_tol=_NEAR)
    if not same or math.isclose(found, 1, rel_tol=_NEAR):
        return ""
    return f"class {int(pair[1])} counts {found:.3g} times as much as class {int(pair[0])}"


def _each_row(target: Tree) -> Iterator[slice]:
    return (slice(row, row + 1) for row in range(len(main(target))))


def _expect_mean(loss: Loss, output: Tree, target: Tree) -> None:
    samples = len(main(target))
    weights = _of_rows(loss, "target_weight", target)
    whole = mean_loss(loss, output, target, sum(weights)).detach()
    alone = [
        mean_loss(loss, rows_of(output, one), rows_of(target, one), weight).detach()
        for one, weight in zip(_each_row(target), weights, strict=True)
    ]
    by = whole.new_tensor(weights)
    mean = (torch.stack(alone) * by).sum() / by.sum().clamp_min(torch.finfo(by.dtype).tiny)
    remedy = f"average over the samples, and let no sample's loss depend on the others of its batch; {_WEIGHTS}"
    found = f"the loss of {samples} samples is {float(whole):.6g}, and the mean of theirs one by one {float(mean):.6g}"
    # relative to the samples' own losses, since a mean near zero is not a measure of rounding
    one, other = [whole, *alone], [mean, *alone]
    if weighed := _class_weights(loss, output, target):
        found, remedy = f"it weighs classes ({weighed}), and does not say so: {found}", _OF_CLASSES
    if not relative_error(one, other) <= _ROUNDED * torch.finfo(whole.dtype).eps:  # not a number compares as false
        expect_close("mean over samples", found, one, other, dtype=torch.float32, remedy=remedy)


def check_weights(trial: LossTrial) -> None:
    """Where the loss has `target_weight` and `target_count`, they return sums over the samples, numbers of at least 0."""
    loss, (_, target) = trial.loss(), trial.batch()
    for name in OF_TARGETS:
        each, whole = _of_rows(loss, name, target), float(of_targets(loss, name, target))
        if not math.isclose(whole, sum(each), rel_tol=torch.finfo(torch.float32).eps):
            found = f"the {name} of {len(main(target))} samples is {whole:.6g}, and the sum of theirs one by one {sum(each):.6g}"
            raise BrokenPromise("weights", found, "return the sum over the samples of this call")


def _of_rows(loss: Loss, name: str, target: Tree) -> list[float]:
    """Return the weight or the count of each sample.

    Raises:
        BrokenPromise: one is not a number of at least 0.
    """
    values = [of_targets(loss, name, rows_of(target, one)) for one in _each_row(target)]
    if fault := next((fault for value in values if (fault := weight_fault(value, name))), ""):
        raise BrokenPromise("weights", fault, "return a number: a sum over the samples")
    return [float(value) for value in values]


def check_metrics(trial: LossTrial) -> None:
    """Metrics are scalars by name, sums over samples: the same for an evaluation in batches of any size."""
    loss, (output, target) = trial.loss(), trial.batch()
    output = detached(output)
    samples = len(main(target))
    first = max(1, 3 * samples // 8)
    whole = _metrics(loss, output, target)
    cuts = [cut for cut in (slice(0, first), slice(first, first + 1), slice(first + 1, None)) if range(samples)[cut]]
    parts = [_metrics(loss, rows_of(output, part), rows_of(target, part)) for part in cuts]
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
    for name, value in _metrics(loss, detached(output), target).items():
        counts = is_share(name) or not value.is_floating_point()
        if counts and counted and is_wrong_share(float(value), counted):
            share = 100 * float(value) / counted
            found = f'"{name}" counts {float(value):g} of {counted:g} samples, a share of {share:.2f} %'
            remedy = "count samples; where a sample has many targets, return the mean over its own as a float"
            raise BrokenPromise("shares", found, remedy)


def _metrics(loss: Loss, output: Tree, target: Tree) -> Mapping[str, Tensor]:
    with torch.no_grad():
        values = loss.metrics(output, target)
    fault = metrics_fault(values)
    graphs = [] if fault else [name for name, value in values.items() if value.requires_grad]
    if fault or graphs:
        found = fault or f'its metric "{graphs[0]}" has a graph'
        raise BrokenPromise("metrics", found, "return a dict of scalar tensors, made of output.detach()")
    return values
