"""What checks compare, and what they find: a broken promise, or a reason why nothing can be said."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROUNDINGS = 2**12
"""Units of rounding that a result may be off by: sums over a few thousand terms, in another order."""


class BrokenPromise(AssertionError):
    """What was found, and is not as training needs it."""


class NotTried(Exception):
    """Why a check says nothing of this plugin."""


def expect(kept: bool, found: str, value: object = None) -> None:
    if not kept:
        raise BrokenPromise(found.format(type(value).__name__))


def expect_close(
    message: str, found: Sequence[Tensor], expected: Sequence[Tensor], dtype: torch.dtype, roundings: int = ROUNDINGS
) -> None:
    """Compare tensors, all together, with units of rounding of the coarsest type that they were computed in."""
    if not all(bool(one.isfinite().all()) for one in expected):
        raise NotTried("it computes values that are not finite of what it was given")
    error, allowed = relative_error(found, expected), roundings * torch.finfo(dtype).eps
    if not error <= allowed:  # not a number compares as false
        raise BrokenPromise(f"{message}: relative error {error:.1e} in {name_of(dtype)}, allowed {allowed:.1e}")


def relative_error(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return |found - expected| / |expected|, norms over all tensors together; absolute where `expected` is zero."""
    pairs = [(one.detach().double(), other.detach().double()) for one, other in zip(found, expected, strict=True)]
    difference = math.hypot(*(float((one - other).norm()) for one, other in pairs))
    size = math.hypot(*(float(other.norm()) for _, other in pairs))
    return difference / size if size else difference


def equal(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def generators() -> Mapping[str, bytes]:
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": repr(np.random.get_state()).encode(),  # noqa: NPY002
        "Python": repr(random.getstate()).encode(),
    }


def state_of(block: nn.Module) -> dict[str, Tensor]:
    both = (*block.named_parameters(), *block.named_buffers())
    return {name: deepcopy(one.detach()) for name, one in both}


def gradients_of(block: nn.Module) -> list[Tensor]:
    trained = (one for one in block.parameters() if one.requires_grad)
    return [torch.zeros_like(one) if one.grad is None else one.grad.to_dense() for one in trained]


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Rounding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the first operation that makes fewer bits of a float64 value that follows from the streams; all values, without streams."""

    def __init__(self, streams: Iterable[Tensor] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = ""
        self._made = None if streams is None else {id(one): one for one in streams}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation."""
        result = func(*args, **(kwargs or {}))
        made, read = _tensors(result), _tensors((args, kwargs or {}))
        of_streams = self._made is None or [one for one in read if id(one) in self._made and one.dtype == torch.float64]
        coarse = [one for one in made if one.is_floating_point() and one.dtype != torch.float64]
        if of_streams and coarse:
            self.found = self.found or name_of(coarse[0].dtype)
        if self._made is not None and any(id(one) in self._made for one in read):
            self._made.update({id(one): one for one in made})
        return result


def _tensors(tree: Any) -> list[Tensor]:
    return [one for one in tree_leaves(tree) if isinstance(one, Tensor)]
