"""A promise that a block did not keep: which, by how much, and what its author can do."""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

_TORCH = str(Path(torch.__file__).parent)
ROUNDINGS = 2**12
"""How many units of rounding a result may be off by: sums over a few thousand terms, in another order."""


class BrokenPromise(AssertionError):
    """What was promised, what came, and what to do."""

    def __init__(self, promise: str, found: str, remedy: str) -> None:
        super().__init__(f"{promise}: {found}\n    do: {remedy}")


def tolerance(dtype: torch.dtype) -> float:
    """Return the largest relative error that rounding explains: 9e-13 in float64, 5e-4 in float32."""
    return ROUNDINGS * torch.finfo(dtype).eps


def relative_error(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return |found - expected| / |expected|, norms over all tensors together; absolute where `expected` is zero."""
    pairs = [(one.detach().double(), other.detach().double()) for one, other in zip(found, expected, strict=True)]
    difference = math.hypot(*(float((one - other).norm()) for one, other in pairs))
    size = math.hypot(*(float(other.norm()) for _, other in pairs))
    return difference / size if size else difference


def expect_close(
    promise: str, what: str, found: Sequence[Tensor], expected: Sequence[Tensor], *, dtype: torch.dtype, remedy: str
) -> None:
    """Compare tensors, all together, with the tolerance of the type that they were computed in.

    Raises:
        BrokenPromise: they differ by more than rounding, or are not finite.
    """
    error, allowed = relative_error(found, expected), tolerance(dtype)
    if not error <= allowed:  # not a number compares as false
        raise BrokenPromise(
            promise, f"{what}: relative error {error:.1e} in {name_of(dtype)}, allowed {allowed:.1e}", remedy
        )


def name_of(dtype: torch.dtype) -> str:
    """Return "float64" for `torch.float64`."""
    return str(dtype).removeprefix("torch.")


def listing(shapes: Sequence[Sequence[int]]) -> str:
    """Write shapes as messages show them: "8x6x6, 8x6x6"."""
    return ", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes) or "nothing"


def raised_at(error: Exception) -> str:
    """Return file:line of the code that raised, torch's own left out: the line that its author can mend."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_TORCH)] or frames
    return f"{own[-1].filename}:{own[-1].lineno}"
