"""A sample of the network's text after every evaluation, in the run's directory.

A run of several processes has the weights of all stages brought together for it. A run that continues forgets the samples behind
its checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from torch import Tensor

import petra_graph
from petra_graph.inference.continued_text import SamplingOptions
from petra_graph.plugins import Callback, Started

FILE = "samples.txt"


class TextSamples(Callback):
    """Writes `samples.txt`."""

    def __init__(self, options: SamplingOptions) -> None:
        self._options = options
        self._directory = Path()
        self._bytes = 0

    def started(self, run: Started) -> None:
        """Begin an empty file, unless the run continues."""
        self._directory = run.directory
        if run.resumed_at is None or not self._file.exists():
            self._write("")
        self._bytes = self._file.stat().st_size

    def evaluated_weights(self, epoch: int, weights: Mapping[str, Tensor]) -> None:
        """Draw a sample and write it."""
        text = petra_graph.sample(self._directory, weights=weights, **attrs.asdict(self._options))
        self._write(f"--- epoch {epoch}\n{text}\n\n")

    def state(self) -> Any:
        """Return the length of the file."""
        return self._bytes

    def restore(self, state: Any) -> None:
        """Cut the file back."""
        self._bytes = min(state, self._bytes)
        self._write("")

    @property
    def _file(self) -> Path:
        return self._directory / FILE

    def _write(self, text: str) -> None:
        """Write text behind what counts."""
        with self._file.open("ab") as file:
            os.ftruncate(file.fileno(), self._bytes)
            file.write(text.encode())
        self._bytes += len(text.encode())
