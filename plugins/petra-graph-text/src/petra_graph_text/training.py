"""What a training of text has besides network and data: its loss, the metric bits-per-byte, and samples of text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import log
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional

import petra_graph
from petra_graph.catalog.losses_and_metrics import widened
from petra_graph.plugins import AtLeast, Callback, Length, Started
from petra_graph.plugins.data_set import IGNORED
from petra_graph_text.tokenizers_on_disk import bytes_of_tokens

FILE = "samples.txt"


class TokenCrossEntropy:
    """Mean cross-entropy over tokens, in nats; counts top-1, and bits a token.

    Logits [n, c, t] against tokens, int64 [n, t]. Any further dimensions, or none, may stand in place of t.
    """

    logits = True

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(*_tokens(output, target))

    def metrics(self, output: Tensor, target: Tensor) -> Mapping[str, Tensor]:
        """Return sums over samples: "top1", the share of tokens that are the likeliest, and "bits", the loss of a token in bits.

        Those are bits a byte where tokens are bytes, and bits a character where they are characters.
        """
        logits, flat = _tokens(output.detach(), target)
        each = flat.numel() / len(target)
        nats = functional.cross_entropy(logits, flat, reduction="sum").double()
        hits = (logits.argmax(dim=1) == flat).sum()
        return {"top1": hits.double() / each, "bits": nats / (each * log(2))}


def _tokens(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits [n * t, c] of float32 or wider, and tokens [n * t]."""
    return widened(output.movedim(1, -1).flatten(0, -2)), target.flatten()


class BitsPerByte:
    """Cross-entropy of a text in bits a byte, from logits of tokens, by which models with different tokens can be compared."""

    better = "lower"

    def __init__(
        self,
        *,
        tokenizer: Annotated[
            Path, "file tokenizer.json of the data set, or the folder that has it", Length(at_least=1)
        ],
    ) -> None:
        self._bytes_of = torch.tensor(bytes_of_tokens(tokenizer))
        self._nats: Tensor | float = 0.0
        self._bytes = 0

    def update(self, output: Tensor, target: Tensor) -> None:
        """Add logits [n, c, *] and tokens, int64 [n, *]; targets of -100 are passed over; IndexError: a target is no token of the tokenizer."""
        each = functional.cross_entropy(widened(output), target, reduction="none")
        self._nats = self._nats + each.double().sum()
        self._bytes += int(self._bytes_of[target[target != IGNORED].cpu()].sum())

    def compute(self) -> Tensor:
        """Return the mean; NaN if the targets are no bytes."""
        return torch.as_tensor(self._nats / (self._bytes * log(2)) if self._bytes else torch.nan, dtype=torch.float64)


class TextSamples(Callback):
    """Writes a sample of the network's text after every evaluation, to `samples.txt`.

    A run that continues forgets the samples behind its checkpoint.
    """

    reads_weights = True

    def __init__(
        self,
        *,
        prompt: Annotated[str, "text to continue", Length(at_least=1)] = "\n",
        tokens: Annotated[int, "length of the continuation, tokens", AtLeast(1)] = 200,
        temperature: Annotated[float, "divides the logits; 0: always the likeliest token", AtLeast(0)] = 0.8,
        top_k: Annotated[int | None, "draw from this many of the likeliest tokens; default: all", AtLeast(1)] = None,
        seed: Annotated[int, "seed of the draws", AtLeast(0)] = 0,
    ) -> None:
        self._options: dict[str, Any] = {"prompt": prompt, "tokens": tokens, "temperature": temperature}
        self._options |= {"top_k": top_k, "seed": seed}
        self._directory = Path()
        self._bytes = 0

    def started(self, run: Started) -> None:
        """Begin an empty file, unless the run continues."""
        self._directory = run.directory
        if run.resumed_at is None or not self._file.exists():
            self._write("")
        self._bytes = self._file.stat().st_size

    def evaluated_weights(self, epoch: int, weights: Mapping[str, Tensor]) -> None:
        text = petra_graph.open_run(self._directory).sample(weights=weights, **self._options)
        self._write(f"--- epoch {epoch}\n{text}\n\n")

    def state(self) -> Any:
        return self._bytes

    def restore(self, state: Any) -> None:
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
