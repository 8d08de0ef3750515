"""The area under the ROC curve, exactly: all outputs are kept, 4 bytes for each class of each sample.

The area is the share of pairs of a sample of the class and another one that the scores have in the right order, of ties half (Hanley &
McNeil, 1982, https://doi.org/10.1148/radiology.143.1.7063747). It follows from the ranks of the class's samples, ties having the mean of theirs.
"""

from __future__ import annotations

import torch

from petra_graph.catalog.metrics.outputs_of_targets import scores_and_classes
from petra_graph.plugins import NoOptions


class Auc:
    """The scores are the softmax of the outputs."""

    def __init__(self, _options: NoOptions) -> None:
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
