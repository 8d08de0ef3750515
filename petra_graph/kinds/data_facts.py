"""The facts of a data set: shapes, types and classes of its samples, which its declaration gives before any file is opened."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, get_args

from attrs import field, frozen

from petra_graph.kinds.declaration import described
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
        if fault := next(self._input_faults(), ""):
            yield fault
            return
        yield from self._target_faults()
        if self.classes is not None and (type(self.classes) is not int or self.classes < 1):
            yield f"have classes = {self.classes!r}, not a number of classes"
        if (self.mean is None) != (self.std is None):
            yield "have one of mean and std; give both, or neither"
        yield from self._normalisation_faults()
        if self.classes is not None and self.class_names is not None and len(self.class_names) != self.classes:
            yield f"have {len(self.class_names)} class_names, and classes = {self.classes}"

    def _input_faults(self) -> Iterator[str]:
        if self.several_inputs:
            if not self.shape or not all(isinstance(name, str) and name for name in self.shape):
                yield f"have shape = {self.shape!r}, without a name for each input"
            if not isinstance(self.dtype, Mapping) or self.dtype.keys() != self.shape.keys():
                yield f"have dtype = {self.dtype!r}, without one type for each of shape = {self.shape!r}"
        for name, (shape, dtype) in self.inputs.items():
            at = f'["{name}"]' if name else ""
            if not _is_shape(shape):
                yield f"have shape{at} = {shape!r}, not a tuple of integers above 0"
            if not isinstance(dtype, str) or dtype not in get_args(Dtype):
                yield f"have dtype{at} = {dtype!r}, not one of {', '.join(get_args(Dtype))}"

    def _target_faults(self) -> Iterator[str]:
        if not isinstance(self.target_shape, tuple | Mapping):
            yield f"have target_shape = {self.target_shape!r}, not a tuple of integers above 0"
            return
        try:
            targets = self.targets
            alike = not self.several_targets or len(self.target_dtype) == len(self.target_shape)
        except (LookupError, TypeError):
            alike = False
        if not alike:
            yield f"have target_dtype = {self.target_dtype!r}, without one type for each of target_shape = {self.target_shape!r}"
            return
        for place, (shape, dtype) in targets.items():
            if not _is_shape(shape):
                yield f"have target_shape{place} = {shape!r}, not a tuple of integers above 0"
            if dtype not in _TARGET_TYPES:
                yield f"have target_dtype{place} = {dtype!r}, not one of {', '.join(_TARGET_TYPES)}"
        if self.several_targets and self.classes is not None:
            yield "have classes, which are those of one target, and several targets; leave `classes` out"

    def _normalisation_faults(self) -> Iterator[str]:
        if self.several_inputs:
            if self.mean is not None or self.std is not None:
                yield "have mean and std, which are of one input, and several inputs; normalise in the data set, or in the first node"
            return
        channels = self.shape[0] if self.shape else 0
        for name in ("mean", "std"):
            values = getattr(self, name)
            if values is None:
                continue
            if not isinstance(values, tuple | list) or not all(isinstance(value, Real) for value in values):
                yield f"have {name} = {values!r}, not a tuple of numbers"
                return
            if len(values) not in {1, channels} or not channels:
                yield f"have {len(values)} values in {name}, and samples of {channels} channels"
            if self.dtype == "uint8" and not all(0 <= value <= 1 for value in values):
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
    if not isinstance(facts, DataFacts):
        return f"are {described(facts)}, not DataFacts"
    return next(facts.faults(), "")
