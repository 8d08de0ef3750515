"""Predictions of a saved run for samples: classes with their probabilities, or plain outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from petra_graph.inference.evaluate import on
from petra_graph.inference.network import Network
from petra_graph.inference.samples import Samples, batches
from petra_graph.inference.saved_run import SavedRun


@frozen(kw_only=True)
class ClassScore:
    """One class for one sample."""

    number: int
    name: str | None
    score: float
    """Its probability where the loss is cross-entropy, else the network's output."""


@frozen(kw_only=True)
class Prediction:
    """The prediction for one sample."""

    file: str
    index: int
    """Of the sample in its file."""
    best: tuple[ClassScore, ...]
    """The classes with the largest scores, the largest first; () where targets are not classes."""
    output: tuple[float, ...]
    """What the network returns, flattened."""
    note: str = ""
    """What was done to the file's samples."""

    def record(self) -> dict[str, Any]:
        """Return it as JSON."""
        found: dict[str, Any] = {"file": self.file, "index": self.index}
        if self.best:
            found["classes"] = [
                {"class": one.number, **({} if one.name is None else {"name": one.name}), "score": one.score}
                for one in self.best
            ]
        else:
            found["output"] = list(self.output)
        return found | ({"note": self.note} if self.note else {})


def predict(
    run: SavedRun,
    network: Network,
    samples: list[Samples],
    *,
    top: int = 3,
    device: str = "cpu",
) -> list[Prediction]:
    """Predict samples, each by itself: the others of its batch do not matter, but for the last bits.

    Args:
        run: which the network is of.
        network: in evaluation mode.
        samples: by file.
        top: how many classes of each.
        device: where to compute.

    Raises:
        SpecError: there is no such device.
        RunFailed: the network cannot be run.
    """
    with on(network, device):
        size = run.spec.data.evaluation_batch or run.spec.data.batch
        outputs = torch.cat([network(part.to(device)).cpu() for part in batches(samples, size)])
    return list(_predictions(run, samples, outputs, top))


def _predictions(run: SavedRun, samples: Sequence[Samples], outputs: Tensor, top: int) -> Iterable[Prediction]:
    classes, names = run.facts.classes, run.facts.class_names
    scores = outputs.float().softmax(dim=1) if run.classes_are_probable else outputs
    row = 0
    for file in samples:
        for index in range(len(file.values)):
            best: tuple[ClassScore, ...] = ()
            if classes is not None and outputs.dim() == 2:  # noqa: PLR2004  [n, classes]
                values, numbers = scores[row].topk(min(top, classes))
                pairs = zip(numbers.tolist(), values.tolist(), strict=True)
                best = tuple(
                    ClassScore(number=at, name=names[at] if names else None, score=value) for at, value in pairs
                )
            yield Prediction(
                file=file.name, index=index, best=best, output=tuple(outputs[row].flatten().tolist()), note=file.note
            )
            row += 1
