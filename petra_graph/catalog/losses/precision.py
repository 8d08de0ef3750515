"""In which number format losses are computed."""

from __future__ import annotations

import torch


def widened(output: torch.Tensor) -> torch.Tensor:
    """Return float64 as it is, anything narrower as float32: a mean over samples in bfloat16 keeps three digits."""
    return output if output.dtype == torch.float64 else output.float()
