"""The loss of language models, in nats, with its value in bits."""

from __future__ import annotations

from collections.abc import Mapping
from math import log

import torch
from attrs import frozen
from torch import Tensor
from torch.nn import functional

from petra_graph.plugins import NoOptions


@frozen
class TokenCrossEntropy:
    """Mean over samples and tokens of the cross-entropy of logits [n, c, t] against tokens, int64 [n, t], in nats.

    Any further dimensions, or none, may stand in place of t.
    """

    options: NoOptions

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss, in float32 or wider."""
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
    logits = output.movedim(1, -1).flatten(0, -2)
    return logits if logits.dtype == torch.float64 else logits.float(), target.flatten()
