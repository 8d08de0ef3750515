"""The head's outputs for fixed samples, taken from the evaluations that the run does anyway.

A line has the epoch, the sample's position in the evaluation (of the validation or test data, or their part), its target and its outputs. The lines of an evaluation are written
when its epoch is over; a resumed run removes those after the checkpoint.
"""

from __future__ import annotations

import json
import operator
import os
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from petra_graph.errors import cannot_write
from petra_graph.plugins import Callback, EpochEnded, Started
from petra_graph_studies.watching.declared import PredictionsOptions


class Predictions(Callback):
    """Writes `predictions.jsonl`."""

    def __init__(self, options: PredictionsOptions) -> None:
        self._indices = sorted(set(options.indices))
        self._path = Path()
        self._bytes = 0
        self._lines: list[str] = []
        """The lines of the evaluation under way."""

    def started(self, run: Started) -> None:
        """Begin an empty file, unless the run is resumed."""
        self._path = run.directory / "predictions.jsonl"
        if run.resumed_at is None or not self._path.exists():
            self._write("")
        self._bytes = self._path.stat().st_size

    def evaluating(self, epoch: int) -> None:
        """Forget the lines of an evaluation that was interrupted."""
        self._lines.clear()

    def evaluated(self, epoch: int, first: int, outputs: Tensor, targets: Any) -> None:
        """Keep the samples of this batch that are asked for."""
        for index in self._indices:
            if first <= index < first + len(outputs):
                at = index - first
                target = tree_map(operator.itemgetter(at), targets)
                line = {
                    "epoch": epoch,
                    "index": index,
                    "target": tree_map(Tensor.tolist, target),
                    "output": outputs[at].tolist(),
                }
                self._lines.append(json.dumps(line) + "\n")

    def epoch_ended(self, report: EpochEnded) -> None:
        """Write the lines of the epoch's evaluation."""
        self._write("".join(self._lines))
        self._lines.clear()

    def state(self) -> Any:
        return self._bytes

    def restore(self, state: Any) -> None:
        """Cut the file back to its length at the checkpoint."""
        self._bytes = min(state, self._bytes)
        self._write("")

    def _write(self, text: str) -> None:
        """Write text after the lines that count, so that a file on a full disk ends with a whole one."""
        try:
            with self._path.open("ab") as file:
                os.ftruncate(file.fileno(), self._bytes)
                file.write(text.encode())
        except OSError as error:
            raise cannot_write(self._path, error) from error
        self._bytes += len(text.encode())
