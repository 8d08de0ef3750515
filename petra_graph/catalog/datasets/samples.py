"""What a sample (x, y) of someone's Dataset may be, as tensors of the types that data sets have, and the facts that it tells of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from petra_graph.errors import Problem, SpecError
from petra_graph.image_files import eight_bits
from petra_graph.plugins import DataFacts
from petra_graph.plugins.tensor_trees import form, forms, leaves, mapped, named_leaves

PAIR = "let a sample be (x, y), each a tensor, an array, a number or a PIL image, or several of them in a tuple or a dictionary"
_WIDENED = {
    **dict.fromkeys((torch.bool, torch.int8, torch.int16, torch.int32), torch.int64),
    **dict.fromkeys((torch.float16, torch.bfloat16), torch.float32),
}
"""Types that data sets do not have, with those that hold the same values."""
_TYPES = (torch.uint8, torch.int64, torch.float32, torch.float64)
_CHANNELS = ("L", "LA", "RGB", "RGBA")
"""PIL's modes that an image keeps; one of black and white alone becomes grey, any other red, green and blue."""


def read_sample(sample: Any) -> tuple[Any, Any]:
    """Return (x, y): x a tensor or a dictionary of named ones, y a tensor or several in a dictionary or a tuple; ValueError: it is no such pair."""
    if not isinstance(sample, tuple | list) or len(sample) != 2:  # noqa: PLR2004
        length = f" of {len(sample)}" if isinstance(sample, tuple | list | Mapping) else ""
        raise ValueError(f"it is a {type(sample).__name__}{length}, not a pair (x, y)")
    x, y = sample
    if isinstance(x, tuple | list):
        x = dict(zip(getattr(x, "_fields", [f"x{at}" for at in range(len(x))]), x, strict=True))
    inputs = {key: _tensor(f'x["{key}"]', one) for key, one in x.items()} if isinstance(x, Mapping) else _tensor("x", x)

    def target_of(value: Any) -> Tensor:
        target = _tensor("y", value)
        return target.long() if target.dtype == torch.uint8 else target

    if isinstance(y, Mapping):
        return inputs, {key: target_of(one) for key, one in y.items()}
    if isinstance(y, tuple | list):
        return inputs, tuple(map(target_of, y))
    target = target_of(y)
    # A label in a list of one, as arrays of labels [n, 1] give it; the one next token of one token is no such label.
    is_label = target.dtype == torch.int64 and target.shape == (1,) and form(inputs) != form(target)
    return inputs, target[0] if is_label else target


def _tensor(name: str, value: Any) -> Tensor:
    """Return a value of a sample as a tensor of the types that data sets have; a PIL image as float32 [channels, height, width] in [0, 1]."""
    if isinstance(value, Image.Image):
        try:
            image = eight_bits(value)
        except ValueError as error:
            raise ValueError(f"{name} is an image, and {error}") from None
        mode = image.mode if image.mode in _CHANNELS else "L" if image.mode == "1" else "RGB"
        pixels = torch.from_numpy(np.array(image.convert(mode)))
        return pixels.view(image.height, image.width, -1).permute(2, 0, 1).contiguous().float() / 255
    if isinstance(value, np.ndarray):
        value = np.array(value)  # a copy, which may be written to
    if not isinstance(value, Tensor | np.ndarray | np.generic | int | float):
        raise ValueError(f"{name} is a {form(value)}")  # noqa: TRY004  one class for all that a sample cannot be
    try:
        tensor = torch.as_tensor(value).detach()
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None
    tensor = tensor.to(_WIDENED.get(tensor.dtype, tensor.dtype))
    if tensor.dtype not in _TYPES:
        raise ValueError(f"{name} is {form(tensor)}")
    return tensor


def facts_of(x: Any, y: Any, classes: int | Sequence[str] | None) -> DataFacts:
    """Return the facts of samples like this one; SpecError: there are classes, and y is no integer; or an image has its channels last."""
    if classes is not None and not (isinstance(y, Tensor) and y.dtype == torch.int64):
        message = f"classes are counted by integers, and y of sample 0 is {forms(y)}"
        hint = "return an integer as y, or leave `classes` out where y is no class"
        raise SpecError(Problem(message=message, hint=hint, path=("classes",)))
    for place, one in named_leaves(x):
        # Surely an image of height, width, channels, which blocks would take for channels, height, width.
        last = one.dim() == 3 and one.shape[2] in {1, 3, 4} and min(one.shape[:2]) > 4  # noqa: PLR2004  more channels than images have
        if last and (one.dtype == torch.uint8 or (one.is_floating_point() and one.min() >= 0 and one.max() <= 1)):
            message = f"x{place} of sample 0 is {form(one)}, an image whose channels come last"
            hint = "return channels, height, width: torch.as_tensor(image).permute(2, 0, 1)"
            raise SpecError(Problem(message=message, hint=hint, path=("train",)))
    names = tuple(classes) if isinstance(classes, Sequence) else None
    (shape, target_shape), (dtype, target_dtype) = (
        [mapped(of, part) for part in (x, y)]
        for of in (lambda one: tuple(one.shape), lambda one: str(one.dtype).removeprefix("torch."))
    )
    return DataFacts(
        shape=shape,
        dtype=dtype,
        classes=classes if names is None else len(names),
        class_names=names,
        target_shape=target_shape,
        target_dtype=target_dtype,
    )


def described(x: Any, y: Any) -> str:
    """Return names, types and shapes of a sample's tensors, as in `x float32 [3, 4], y int64 []`."""
    return f"{forms(x, 'x')}, {forms(y, 'y')}"


def are_equal(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    return described(*one) == described(*other) and all(map(torch.equal, leaves(one), leaves(other)))
