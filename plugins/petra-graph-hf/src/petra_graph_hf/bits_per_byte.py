"""The cross-entropy of a text in bits a byte, which models with different tokens can be compared by."""

from __future__ import annotations

from math import log

import torch
from torch import Tensor
from torch.nn import functional

from petra_graph_hf.declared import BitsPerByteOptions
from petra_graph_hf.tokenizers_on_disk import bytes_of_tokens, end_token

_PASSED_OVER = -100


class BitsPerByte:
    """The sum of the cross-entropies in float64, and the bytes of the targets."""

    def __init__(self, options: BitsPerByteOptions) -> None:
        sizes = bytes_of_tokens(options.tokenizer)
        if options.end_of_text is not None:
            sizes[end_token(options.tokenizer, options.end_of_text)] = 0
        self._bytes_of = torch.tensor(sizes)
        self._nats: Tensor | float = 0.0
        self._bytes = 0

    def update(self, output: Tensor, target: Tensor) -> None:
        """Add logits [n, c, *] and tokens, int64 [n, *]; targets of -100 are passed over.

        Raises:
            ValueError: a target is no token of the tokenizer.
        """
        counted = target[target != _PASSED_OVER].cpu()
        if counted.numel() and int(counted.max()) >= len(self._bytes_of):
            message = f"targets reach {int(counted.max())}, and the tokenizer has {len(self._bytes_of)} tokens"
            raise ValueError(f"{message}: give the tokenizer of the data set")
        logits = output if output.dtype == torch.float64 else output.float()
        each = functional.cross_entropy(logits, target, reduction="none", ignore_index=_PASSED_OVER)
        self._nats = self._nats + each.double().sum()
        self._bytes += int(self._bytes_of[counted].sum())

    def compute(self) -> Tensor:
        """Return the mean; NaN if the targets are no bytes."""
        return torch.as_tensor(self._nats / (self._bytes * log(2)) if self._bytes else torch.nan, dtype=torch.float64)
