"""A loss of classes: its least value is at the class that is meant, sure mistakes have a gradient, and -100 counts for nothing."""

from __future__ import annotations

from contextlib import suppress

import torch
from attrs import frozen
from torch import Tensor

from petra_graph.kinds.data_facts import IGNORED
from petra_graph.kinds.loss import Loss, target_weight
from petra_graph_conformance.broken_promise import BrokenPromise
from petra_graph_conformance.kinds.loss_trial import LossTrial

_TARGETS, _NEIGHBOURS = 6, 2
"""Classes that are tried as targets, and classes on either side that are predicted for each."""
_SURE = 30.0
"""The output of a class that is predicted surely, where the others' are 0."""
_LOST = 1e-6
"""A gradient of sure mistakes below this share of that of drawn outputs is lost."""
_SAME = 1e-4
"""The relative difference of two losses that rounding explains, in float32 and over a few samples."""


@frozen(kw_only=True)
class _Classes:
    """Outputs and targets of classes."""

    loss: Loss
    output: Tensor
    target: Tensor
    dim: int
    """Of the output, that of classes."""

    @staticmethod
    def of(trial: LossTrial) -> _Classes | None:
        """Return those of a trial; None where its targets are not classes, one for each sample, token or pixel."""
        output, target = trial.batch()
        if not (isinstance(output, Tensor) and isinstance(target, Tensor)) or target.dtype != torch.int64:
            return None
        for dim in (1, output.dim() - 1):
            rest = (*output.shape[:dim], *output.shape[dim + 1 :])
            if output.dim() > 1 and output.shape[dim] > 2 and rest == target.shape:  # noqa: PLR2004  two may be one of each
                return _Classes(loss=trial.loss(), output=output, target=target, dim=dim)
        return None

    @property
    def number(self) -> int:
        return self.output.shape[self.dim]

    def surely(self, predicted: int) -> Tensor:
        """Return the output of one sample that predicts a class surely, everywhere."""
        output = torch.zeros_like(self.output[:1])
        output.select(self.dim, predicted).fill_(_SURE)
        return output.requires_grad_()

    def everywhere(self, target: int) -> Tensor:
        """Return the targets of one sample, all of one class."""
        return torch.full_like(self.target[:1], target)


def check_right_class(trial: LossTrial) -> None:
    """Of all sure predictions, that of the target's own class has the least loss, and not that of the class beside it.

    A loss whose least value is at no class, as one of distances, is let be.
    """
    classes = _Classes.of(trial)
    if classes is None:
        return
    shifts = []
    with suppress(Exception), torch.no_grad():
        for target in torch.linspace(0, classes.number - 1, min(_TARGETS, classes.number)).long().tolist():
            losses = {
                shift: float(classes.loss(classes.surely(target + shift), classes.everywhere(target)))
                for shift in range(-_NEIGHBOURS, _NEIGHBOURS + 1)
                if 0 <= target + shift < classes.number
            }
            least, *others = sorted(losses, key=lambda shift: losses[shift])
            if all(losses[least] < losses[other] for other in others):
                shifts.append(least)
    shift = max(set(shifts), key=shifts.count, default=0)
    if shift and 2 * shifts.count(shift) > min(_TARGETS, classes.number):
        found = f"for a target of class c, outputs that predict class c {'+' if shift > 0 else '-'} {abs(shift)} surely have the least loss"
        raise BrokenPromise("right class", found, "see how targets are counted: classes are 0 .. classes - 1")


def check_sure_mistakes(trial: LossTrial) -> None:
    """Outputs that are surely wrong have a gradient: of a softmax that is taken twice, it is lost."""
    classes = _Classes.of(trial)
    if classes is None:
        return
    (drawn,) = torch.autograd.grad(classes.loss(classes.output, classes.target), classes.output)
    output = classes.surely(classes.number - 1)
    try:
        (gradient,) = torch.autograd.grad(classes.loss(output, classes.everywhere(0)), output)
    except Exception:  # noqa: BLE001  it refuses such outputs
        return
    largest = float(gradient.abs().max())
    if largest <= _LOST * float(drawn.abs().max()):
        found = f"outputs of {_SURE:g} for a wrong class, and of 0 for the others, have a gradient of {largest:.1e}, so that they are never mended"
        remedy = (
            "leave out the softmax where the loss takes one itself, as cross_entropy does; do not clamp probabilities"
        )
        raise BrokenPromise("sure mistakes", found, remedy)


def check_ignored(trial: LossTrial) -> None:
    """A target of -100 counts for nothing: no gradient reaches its output, and the loss is that of the other samples.

    A loss that refuses such targets says so itself, in a run whose data has some; in a run whose data has none, it is not asked.
    """
    classes = _Classes.of(trial)
    has_none = trial.of_run is not None and (trial.micro_batch is None or IGNORED not in trial.micro_batch)
    if classes is None or has_none:
        return
    output, target = classes.output, classes.target.clone()
    kept = torch.arange(len(target)) % 2 == 0
    target[~kept] = IGNORED
    try:
        value = classes.loss(output, target)
        as_first, others = (
            classes.loss(output[rows], target[rows].clamp(min=0)).detach() for rows in (slice(None), kept)
        )
    except Exception:  # noqa: BLE001  it takes no such targets
        return
    (gradient,) = torch.autograd.grad(value, output)
    remedy = "pass over them, as cross_entropy does with ignore_index; or raise an error where a target is below 0"
    if bool(gradient[~kept].count_nonzero()):
        if torch.equal(value, as_first):
            found = f"a target of {IGNORED} is learnt as if it were class 0"
            raise BrokenPromise("ignored targets", found, remedy)
        return  # what it makes of such a target is not a class
    value = value.detach()
    if not torch.isclose(value, others, rtol=_SAME):
        found = f"with {int((~kept).sum())} more targets of {IGNORED}, the loss of {int(kept.sum())} samples is {float(value):.6g} in place of {float(others):.6g}"
        raise BrokenPromise("ignored targets", found, "divide by the number of targets that are not passed over")
    weights = [target_weight(classes.loss, one) for one in (target, target[kept])]
    if hasattr(classes.loss, "target_weight") and not _close(*weights):
        found = f"its target_weight counts targets of {IGNORED}: {weights[0]:g} with them, {weights[1]:g} without"
        raise BrokenPromise("ignored targets", found, "count those that are not passed over")


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= _SAME * max(abs(one), abs(other))
