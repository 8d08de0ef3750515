"""What a data set fetched, compared with what it declares."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from petra_graph.registry.contracts import DataFacts

_IGNORED = -100
"""The class index that torch's losses pass over."""


def samples_fault(facts: DataFacts, rows: int, fetched: Any) -> str:
    """Return the first fault of a fetched micro-batch, as a sentence without its subject's place; "" where it has none.

    Args:
        rows: samples that were asked for.
    """
    if not (isinstance(fetched, tuple | list) and len(fetched) == 2 and all(isinstance(x, Tensor) for x in fetched)):  # noqa: PLR2004
        inside = f" of {', '.join(type(x).__name__ for x in fetched)}" if isinstance(fetched, tuple | list) else ""
        return f"fetch returned a {type(fetched).__name__}{inside}, not a tuple of two tensors"
    samples, targets = fetched
    return _tensor_fault("samples", samples, (rows, *facts.shape), facts.dtype) or targets_fault(facts, rows, targets)


def targets_fault(facts: DataFacts, rows: int, targets: Any) -> str:
    """Return the first fault of fetched targets, as `samples_fault`."""
    if not isinstance(targets, Tensor):
        return f"fetch_targets returned a {type(targets).__name__}, not a tensor"
    fault = _tensor_fault("targets", targets, (rows, *facts.target_shape), facts.target_dtype)
    if fault or facts.classes is None or facts.target_dtype != "int64" or not targets.numel():
        return fault
    low, high = int(targets.min()), int(targets.max())
    if high >= facts.classes or (low < 0 and bool(((targets < 0) & (targets != _IGNORED)).any())):
        return f"targets are {low} .. {high}, where the data set declares classes 0 .. {facts.classes - 1}"
    return ""


def not_finite(fetched: tuple[Tensor, Tensor]) -> str:
    """Return which part of a fetched micro-batch is not finite; "" where all is."""
    names = zip(("samples", "targets"), fetched, strict=True)
    return next((name for name, part in names if part.is_floating_point() and not bool(part.isfinite().all())), "")


def _tensor_fault(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: str) -> str:
    if tuple(tensor.shape) != shape:
        return f"{shape[0]} {name} have the shape {list(tensor.shape)}, where the data set declares {list(shape)}"
    if tensor.dtype != getattr(torch, dtype):
        return f"{name} are {str(tensor.dtype).removeprefix('torch.')}, where the data set declares {dtype}"
    if tensor.device.type != "cpu":
        return f"{name} are on {tensor.device}, not on the CPU"
    return ""
