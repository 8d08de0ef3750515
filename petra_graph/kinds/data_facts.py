"""The facts of a data set: shapes, types and classes of its samples, which its declaration gives before any file is opened."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, get_args

from attrs import field, frozen

from petra_graph.kinds.tensor_trees import Tree
from petra_graph.spec.model import Dtype
from petra_graph.spec.value_types import plain

if TYPE_CHECKING:
    import torch
    from torch import Tensor

IGNORED = -100
"""The class index that torch's losses pass over."""
_TARGET_TYPES = ("int64", "float32", "float64")


def _plain(value: Any) -> Any:
    """Return a number, or numbers in a tuple or a dictionary, in Python's own types: sizes often come from numpy."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return tuple(map(_plain, value)) if isinstance(value, tuple) else plain(value)


@frozen(kw_only=True)
class DataFacts:
    """The properties of a data set that its declaration gives before any file is opened.

    Attributes:
        shape: of one sample, without the batch dimension; images are channels, height, width. Of several inputs a sample, a dictionary
            of shapes: {"tokens": (128,), "mask": (128,)}; the first node's block reads them in this order, forward(tokens, mask).
        dtype: of the samples; of several inputs, a dictionary of the same names.
        classes: class indices in targets are below this; None where that depends on the files, or where targets are not
            classes.
        target_shape: of one target, without the batch dimension: () for a class or a number, (tokens,) for a class each token,
            (height, width) for one each pixel. Of several targets a sample, a tuple or a dictionary of shapes: {"labels": (5,), "boxes":
            (5, 4)}. They have no `classes`.
        target_dtype: int64 for class indices, floats for values; of several targets, in the same tuple or dictionary.
        mean: of each channel in [0, 1] (uint8 divided by 255); None: no normalisation. Several inputs have none.
        std: of each channel, likewise; given with the mean or not at all.
        class_names: the names of the classes, by class index; None where they are not known.
    """

    shape: Any = field(converter=_plain)
    dtype: Any = "uint8"
    classes: int | None = field(default=None, converter=_plain)
    target_shape: Any = field(default=(), converter=_plain)
    target_dtype: Any = "int64"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    class_names: tuple[str, ...] | None = None

    @property
    def of_tokens(self) -> bool:
        """Whether samples are windows of tokens, with a target for each token."""
        return self.dtype == "int64" and len(self.shape) == 1 and self.target_shape == self.shape

    @property
    def several_inputs(self) -> bool:
        """Whether a sample has several inputs, in a dictionary."""
        return isinstance(self.shape, Mapping)

    @property
    def inputs(self) -> Mapping[str, tuple[Any, Any]]:
        """Shape and type of each input by its name, in the order in which the first node reads them; of a single one by ""."""
        if not self.several_inputs:
            return {"": (self.shape, self.dtype)}
        return {name: (shape, self.dtype[name]) for name, shape in self.shape.items()}

    @property
    def several_targets(self) -> bool:
        """Whether a sample has several targets, in a tuple or a dictionary."""
        shape = self.target_shape
        return isinstance(shape, Mapping) or any(isinstance(one, tuple) for one in shape)

    @property
    def targets(self) -> Mapping[str, tuple[Any, Any]]:
        """Shape and type of each target by its place, `["boxes"]` or [1]; of a single one by ""."""
        if not self.several_targets:
            return {"": (self.target_shape, self.target_dtype)}
        keys = self.target_shape if isinstance(self.target_shape, Mapping) else range(len(self.target_shape))
        return {
            f'["{key}"]' if isinstance(key, str) else f"[{key}]": (self.target_shape[key], self.target_dtype[key])
            for key in keys
        }

    def faults(self) -> Iterator[str]:
        """Yield what is wrong, as the end of a sentence."""
        try:
            inputs, targets = self.inputs, self.targets
        except (LookupError, TypeError, AttributeError):
            yield "have not a type in dtype, and in target_dtype, for each of shape and of target_shape"
            return
        for noun, every, types in (("", inputs, get_args(Dtype)), ("target_", targets, _TARGET_TYPES)):
            for place, (shape, dtype) in every.items():
                if not _is_shape(shape):
                    yield f"have {noun}shape{place} = {shape!r}, not a tuple of integers above 0"
                elif dtype not in types:
                    yield f"have {noun}dtype{place} = {dtype!r}, not one of {', '.join(types)}"
        if self.classes is not None and (type(self.classes) is not int or self.classes < 1 or self.several_targets):
            yield f"have classes = {self.classes!r}, not the number of classes of one target"
        if self.mean is not None or self.std is not None:
            yield from self._normalisation_faults()

    def _normalisation_faults(self) -> Iterator[str]:
        sizes = {1, *self.shape[:1]} if isinstance(self.shape, tuple) else set()
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is None or len(values) not in sizes:
                yield f"have {name} = {values!r}, not a number for each channel of one input"
            elif self.dtype == "uint8" and not all(0 <= value <= 1 for value in values):
                yield f"have {name} = {values}, not within [0, 1]: samples of uint8 are divided by 255"
        if self.std is not None and not all(math.isfinite(value) and value > 0 for value in self.std):
            yield f"have std = {self.std}, not above 0: samples are divided by it"


def _is_shape(value: object) -> bool:
    return isinstance(value, tuple) and all(type(size) is int and size > 0 for size in value)


def zero_targets(facts: DataFacts, rows: int, device: torch.device | None = None) -> Tree:
    """Return targets as a data set declares them, of zeros."""
    import torch

    def zeros(shape: tuple[int, ...], dtype: str) -> Tensor:
        return torch.zeros(rows, *shape, dtype=getattr(torch, dtype), device=device)

    shape, dtype = facts.target_shape, facts.target_dtype
    if not facts.several_targets:
        return zeros(shape, dtype)
    if isinstance(shape, Mapping):
        return {key: zeros(one, dtype[key]) for key, one in shape.items()}
    return tuple(zeros(*pair) for pair in zip(shape, dtype, strict=True))


def facts_fault(facts: object) -> str:
    """Return the first fault of what should be a data set's facts, as the end of a sentence; "" where they are right."""
    return next(facts.faults(), "") if isinstance(facts, DataFacts) else f"are {type(facts).__name__}, not DataFacts"
