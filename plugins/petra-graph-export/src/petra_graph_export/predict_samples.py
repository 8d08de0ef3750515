"""Predictions of a saved run for samples: classes with their probabilities, or plain outputs."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
from attrs import frozen
from torch import Tensor

from petra_graph.inference.saved_run import SavedRun
from petra_graph.inference.trained_network import Network
from petra_graph.kinds.loss import LossDeclaration
from petra_graph.kinds.tensor_trees import main, mapped
from petra_graph_export.evaluate_run import computing_on
from petra_graph_export.sample_files import Samples, batches


@frozen(kw_only=True)
class ClassScore:
    """One class for one sample."""

    number: int
    name: str | None
    score: float
    """Its probability where the loss reads the outputs as logits, else the network's output."""


@frozen(kw_only=True)
class Prediction:
    """The prediction for one sample; where a sample has a target at each of several positions, for one position of it."""

    file: str
    index: int
    """Of the sample in its file."""
    position: tuple[int, ...] = ()
    """In the sample's targets, such as a token's in a text; () where a sample has one target."""
    best: tuple[ClassScore, ...]
    """The classes with the largest scores, the largest first; () where targets are not classes."""
    output: tuple[float, ...]
    """What the network returns, flattened."""
    note: str = ""
    """What was done to the file's samples."""

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = {"file": self.file, "index": self.index}
        if self.position:
            found["position"] = list(self.position)
        if self.best:
            found["classes"] = [
                {"class": one.number, **({} if one.name is None else {"name": one.name}), "score": one.score}
                for one in self.best
            ]
        else:
            found["output"] = list(self.output)
        return found | ({"note": self.note} if self.note else {})


def predict_samples(
    run: SavedRun,
    network: Network,
    samples: list[Samples],
    *,
    top: int = 3,
    device: str = "cpu",
) -> list[Prediction]:
    """Predict samples, each by itself: the others of its batch do not matter, but for the last bits.

    Where a sample has a class at each of several positions, such as a text's tokens, each position is a prediction.

    Args:
        network: in evaluation mode.
        top: how many classes of each.

    Raises:
        SpecError: there is no such device.
        RunFailed: the network cannot be run.
    """
    facts, of_classes = run.facts, gives_classes(run)
    return [
        Prediction(
            file=one.file.name,
            index=one.index,
            position=position,
            best=best_classes(one.scores[there], facts.class_names, top) if of_classes else (),
            output=tuple(one.output[there].flatten().tolist()),
            note=one.file.note,
        )
        for one in score_samples(run, network, samples, device)
        for position in np.ndindex(*facts.target_shape if of_classes else ())
        for there in [(slice(None), *position) if of_classes else ()]
    ]


@frozen(kw_only=True, eq=False)
class Scored:
    """What the network returns for one sample."""

    file: Samples
    index: int
    """Of the sample in its file."""
    output: Tensor
    scores: Tensor
    """The output; probabilities, where the loss reads it as logits."""


def classes_are_probable(run: SavedRun) -> bool:
    """Whether a network's outputs are logits of classes, whose softmax is a probability."""
    loss = cast(LossDeclaration, run.network.checked.loss.plugin.declaration)
    return loss.logits and run.facts.classes is not None


def gives_classes(run: SavedRun) -> bool:
    """Whether the network's outputs are [n, classes, *target_shape]."""
    shape = run.network.shapes[run.network.graph.head].outputs[0]
    return run.facts.classes is not None and tuple(shape[1:]) == run.facts.target_shape


def score_samples(run: SavedRun, network: Network, samples: list[Samples], device: str) -> Iterator[Scored]:
    """Yield each sample's scores in order, a batch after the other; errors as of `predict_samples`."""
    places = ((file, index) for file in samples for index in range(len(main(file.values))))
    onto = operator.methodcaller("to", device)
    with computing_on(network, device):
        for part in batches(samples, run.spec.data.test_batch):
            outputs = main(network(mapped(onto, part))).cpu()
            scores = outputs.float().softmax(dim=1) if classes_are_probable(run) else outputs
            for output, score in zip(outputs, scores, strict=True):
                file, index = next(places)
                yield Scored(file=file, index=index, output=output, scores=score)


def best_classes(scores: Tensor, names: Sequence[str] | None, top: int) -> tuple[ClassScore, ...]:
    values, numbers = scores.topk(min(top, len(scores)))
    pairs = zip(numbers.tolist(), values.tolist(), strict=True)
    return tuple(ClassScore(number=at, name=names[at] if names else None, score=value) for at, value in pairs)
