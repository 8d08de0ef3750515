"""Metrics of classification and segmentation, which read scores of classes."""

from __future__ import annotations

from typing import Annotated, Literal

import torch

from petra_graph.catalog.metrics import scores_and_classes


class _OfClasses:
    """Of three counts for each class: right, predicted and wanted; they do not depend on the batches."""

    share = True

    def __init__(self) -> None:
        self.counts: torch.Tensor | int = 0

    def update(self, output: torch.Tensor, target: torch.Tensor) -> None:
        """Add the counts of a batch, [3, classes]."""
        scores, wanted = scores_and_classes(output, target)
        predicted = scores.argmax(1)
        each = (wanted[predicted == wanted], predicted, wanted)
        self.counts = self.counts + torch.stack([torch.bincount(one, minlength=scores.shape[1]) for one in each])

    def shares(self, weight: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weight * right / (predicted + wanted + (weight - 2) * right) and the targets of each class that is there."""
        right, predicted, wanted = torch.as_tensor(self.counts).double().unbind()
        there = predicted + wanted > 0
        shares = weight * right / (predicted + wanted + (weight - 2) * right)
        return shares[there], wanted[there]


class F1(_OfClasses):
    """F1 score of the predicted classes, 2 * right / (predicted + wanted) of each; a class that is neither a target nor predicted does not count."""

    def __init__(
        self,
        *,
        average: Annotated[
            Literal["macro", "micro", "weighted"],
            "mean over the classes; of all samples as one class; or mean weighted by the classes' samples",
        ] = "macro",
    ) -> None:
        super().__init__()
        self.average = average

    def compute(self) -> torch.Tensor:
        """Return the average that the options name; NaN without targets."""
        if self.average == "micro":
            right, predicted, wanted = torch.as_tensor(self.counts).double().sum(1).unbind()
            return 2 * right / (predicted + wanted)
        shares, wanted = self.shares(2)
        return shares.mean() if self.average == "macro" else (shares * wanted).sum() / wanted.sum()


class MeanIou(_OfClasses):
    """Mean over the classes, as of pixels, of right / (predicted + wanted - right); a class that is neither a target nor predicted does not count."""

    def compute(self) -> torch.Tensor:
        """Return the mean; NaN without targets."""
        return self.shares(1)[0].mean()


class Auc:
    """Area under the ROC curve, each class against the rest, mean over the classes that divide the targets; keeps all outputs on the CPU.

    It is exact: 4 bytes are kept for each class of each sample. Scores are the softmax of the outputs.

    The area is the share of pairs of a sample of the class and another one that the scores have in the right order, of ties half (Hanley &
    McNeil, 1982, https://doi.org/10.1148/radiology.143.1.7063747). It follows from the ranks of the class's samples, ties having the
    mean of theirs.
    """

    share = True

    def __init__(self) -> None:
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def update(self, output: torch.Tensor, target: torch.Tensor) -> None:
        """Keep a batch on the CPU."""
        scores, classes = scores_and_classes(output, target)
        self.kept.append((scores.to("cpu", copy=True), classes.to("cpu", copy=True)))

    def compute(self) -> float:
        """Return the mean over the classes that divide the targets; NaN where no class does."""
        scores, classes = (torch.cat(parts) for parts in zip(*self.kept, strict=True))
        shares = scores.double().softmax(1)
        areas = [_area(shares[:, number], classes == number) for number in range(shares.shape[1])]
        known = [area for area in areas if area is not None]
        return sum(known) / len(known) if known else float("nan")


def _area(scores: torch.Tensor, own: torch.Tensor) -> float | None:
    """Return the area of a class's scores; None where all samples are of the class, or none is."""
    here = int(own.sum())
    others = len(own) - here
    if not here or not others:
        return None
    _, places, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    twice = 2 * counts.cumsum(0) - counts + 1  # twice the mean rank of equal scores: whole numbers
    return float((int(twice[places[own]].sum()) - here * (here + 1)) / (2 * here * others))
