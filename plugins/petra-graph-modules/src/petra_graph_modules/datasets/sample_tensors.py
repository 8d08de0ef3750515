"""A sample of a torch Dataset, which may be of arrays, numbers and images, as tensors of the types that data sets have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

PAIR_HINT = "let a sample be (x, y), each a tensor, an array, a number or a PIL image, or several of them in a tuple or a dictionary"
_WIDENED = {
    torch.bool: torch.int64,
    torch.int8: torch.int64,
    torch.int16: torch.int64,
    torch.int32: torch.int64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}
"""Types that data sets do not have, with those that hold the same values."""
_TYPES = (torch.uint8, torch.int64, torch.float32, torch.float64)
_CHANNELS = ("L", "LA", "RGB", "RGBA")
"""PIL's modes that an image keeps; one of black and white alone becomes grey, any other red, green and blue."""


def read_sample(sample: Any) -> tuple[Any, Any]:
    """Return (x, y): x a tensor or a dictionary of named ones, y a tensor or several in a dictionary or a tuple.

    Raises:
        ValueError: the sample is no pair of what can be such tensors.
    """
    if not isinstance(sample, tuple | list) or len(sample) != 2:  # noqa: PLR2004
        length = f" of {len(sample)}" if isinstance(sample, tuple | list | Mapping) else ""
        raise ValueError(f"it is a {type(sample).__name__}{length}, not a pair (x, y)")
    x, y = sample
    if isinstance(x, tuple | list):
        names = getattr(x, "_fields", [f"x{at}" for at in range(len(x))])
        x = dict(zip(names, x, strict=True))
    for name, part in (("x", x), ("y", y)):
        if isinstance(part, Mapping | tuple | list) and not part:
            raise ValueError(f"{name} is empty")
        if isinstance(part, Mapping) and not all(isinstance(key, str) and key for key in part):
            raise ValueError(f"{name} is a dictionary whose keys are not texts")
    if isinstance(x, Mapping):
        return {key: _make_tensor(f'x["{key}"]', one) for key, one in x.items()}, map_part(_make_target, y)
    return _make_tensor("x", x), map_part(_make_target, y)


def map_part(function: Callable[[Any], Any], part: Any) -> Any:
    """Return what a function makes of a part of a sample, or of each value in it, in the same dictionary or tuple."""
    if isinstance(part, Mapping):
        return {key: function(one) for key, one in part.items()}
    return tuple(map(function, part)) if isinstance(part, tuple | list) else function(part)


def name_tensors(name: str, part: Any) -> dict[str, Tensor]:
    """Return the tensors of a part of a sample by the names that messages give them, as in `x["image"]` and `y[0]`."""
    if isinstance(part, Mapping):
        return {f'{name}["{key}"]': one for key, one in part.items()}
    if isinstance(part, tuple):
        return {f"{name}[{at}]": one for at, one in enumerate(part)}
    return {name: part}


def type_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def describe(tensor: Tensor) -> str:
    """Return the type and the shape of a tensor, as in `float32 [3, 4]`."""
    return f"{type_name(tensor)} {list(tensor.shape)}"


def _make_target(value: Any) -> Tensor:
    target = _make_tensor("y", value)
    return target.long() if target.dtype == torch.uint8 else target


def _make_tensor(name: str, value: Any) -> Tensor:
    image = sys.modules.get("PIL.Image")
    if image is not None and isinstance(value, image.Image):
        return _make_image_tensor(name, value)
    if isinstance(value, np.ndarray):
        value = np.array(value)  # a copy, which may be written to
    if not isinstance(value, Tensor | np.ndarray | np.generic | int | float):
        raise ValueError(f"{name} is a {type(value).__name__}")  # noqa: TRY004  one class for all that a sample cannot be
    try:
        tensor = torch.as_tensor(value).detach()
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None
    tensor = tensor.to(_WIDENED.get(tensor.dtype, tensor.dtype))
    if tensor.dtype not in _TYPES:
        raise ValueError(f"{name} is {describe(tensor)}")
    return tensor


def _make_image_tensor(name: str, image: Any) -> Tensor:
    """Return a PIL image as float32 [channels, height, width] in [0, 1]."""
    from petra_graph.image_files import eight_bits

    try:
        image = eight_bits(image)
    except ValueError as error:
        raise ValueError(f"{name} is an image, and {error}") from None
    mode = image.mode if image.mode in _CHANNELS else "L" if image.mode == "1" else "RGB"
    pixels = torch.from_numpy(np.array(image.convert(mode)))
    return pixels.view(image.height, image.width, -1).permute(2, 0, 1).contiguous().float() / 255
