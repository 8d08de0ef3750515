"""The number format and the counts that the losses share."""

from __future__ import annotations

from collections.abc import Mapping

import torch

_MOST = 5


def correct(output: torch.Tensor, target: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """Return the counts of samples whose target is the largest output ("top1"), or among the five largest ("top5").

    Args:
        output: [n, classes]; where there are fewer than five classes, "top5" counts all samples.
        target: class indices, int64 [n].

    Returns:
        int64 scalars without a graph.
    """
    ranked = output.detach().topk(min(_MOST, output.shape[1]), dim=1).indices
    hits = ranked == target.unsqueeze(1)
    return {"top1": hits[:, 0].sum(), "top5": hits.sum()}


def widened(output: torch.Tensor) -> torch.Tensor:
    """Return float64 as it is and any narrower type as float32: a mean over samples in bfloat16 keeps three digits."""
    return output if output.dtype == torch.float64 else output.float()
