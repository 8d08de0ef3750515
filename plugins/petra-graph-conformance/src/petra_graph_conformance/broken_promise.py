"""A promise that a plugin did not keep: which, by how much, and what its author can do."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

ROUNDINGS = 2**12
"""Units of rounding that a result may be off by: sums over a few thousand terms, in another order."""


class BrokenPromise(AssertionError):
    """The name of a promise, the observation that breaks it, and the remedy."""

    def __init__(self, promise: str, found: str, remedy: str) -> None:
        super().__init__(f"{promise}: {found}\n    do: {remedy}")
        self.promise, self.found, self.remedy = promise, found, remedy


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
    promise: str,
    found: str,
    one: Sequence[Tensor],
    other: Sequence[Tensor],
    *,
    dtype: torch.dtype | None = None,
    roundings: int = ROUNDINGS,
    remedy: str,
) -> None:
    """Compare tensors, all together, with units of rounding of the coarsest type that they were computed in; None: float64.

    Raises:
        BrokenPromise: they differ by more than rounding, or are not finite.
    """
    dtype = dtype or torch.float64
    error, allowed = relative_error(one, other), roundings * torch.finfo(dtype).eps
    if not math.isfinite(error):
        what = "it computes values that are not finite, which cannot be compared"
        raise BrokenPromise(promise, f"{found}: {what}", "give the trial inputs for which it is finite, or mend it")
    if error > allowed:
        size = f"relative error {error:.1e} in {name_of(dtype)}, allowed {allowed:.1e}"
        raise BrokenPromise(promise, f"{found}: {size}", remedy)


def all_equal(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Whether all tensors are equal, pair by pair."""
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def largest_difference(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Return the largest difference between two elements, pair by pair."""
    return max(float((left - right).abs().max()) for left, right in zip(one, other, strict=True))


def name_of(dtype: torch.dtype) -> str:
    """Return "float64" for `torch.float64`."""
    return str(dtype).removeprefix("torch.")
