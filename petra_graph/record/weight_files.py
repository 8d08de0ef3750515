"""Files of weights of any program: safetensors, and `state_dict`s that torch.save has written.

Tensors are read one at a time where the file allows it, so that comparing shapes reads no weights.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from safetensors import SafetensorError, safe_open
from torch import Tensor

_INSIDE = ("state_dict", "model_state_dict", "model")
"""Under which checkpoints of others hold their weights."""
_PICKLE = b"\x80"
"""The first byte of torch.save's older format, and of safetensors whose header is as long as that."""
_LENGTH = 8
"""Bytes of the length of safetensors' header, which begins with a brace."""


class UnreadableWeights(Exception):
    """A file holds no weights that can be read; the message says why."""


@frozen
class WeightFile:
    """An open file of tensors by name."""

    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], Tensor]
    """Returns the tensor of a name."""


@contextmanager
def open_weights(file: Path) -> Iterator[WeightFile]:
    """Open a file of weights; what it is follows from its content.

    No code of a file is run: torch reads it with `weights_only`.

    Raises:
        UnreadableWeights: it cannot be read, or holds something else than tensors by name.
    """
    try:
        if _is_torchs(file):
            tensors = _state_dict(file)
            yield WeightFile({name: tuple(one.shape) for name, one in tensors.items()}, tensors.__getitem__)
        else:
            with safe_open(file, framework="pt") as opened:
                names = opened.keys()
                yield WeightFile({name: tuple(opened.get_slice(name).get_shape()) for name in names}, opened.get_tensor)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UnreadableWeights(f"{file} cannot be read: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _is_torchs(file: Path) -> bool:
    if zipfile.is_zipfile(file):
        return True
    with file.open("rb") as opened:
        begin = opened.read(_LENGTH + 1)
    return begin[:1] == _PICKLE and begin[_LENGTH:] != b"{"


def _state_dict(file: Path) -> Mapping[str, Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of protocols that torch may not read; where it cannot, it raises
        # Older files are not zip archives, and cannot be mapped into memory.
        try:
            content: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
        except Exception as error:  # noqa: BLE001  torch's reader raises whatever a damaged pickle leads it to
            raise UnreadableWeights(f"{file} cannot be read: {_reason(error)}") from None
    for key in _INSIDE:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping):
        raise UnreadableWeights(f"{file} holds {type(content).__name__}, and no tensors by name")
    others = [f"{name} ({type(value).__name__})" for name, value in content.items() if not isinstance(value, Tensor)]
    if others or not content:
        found = f"holds {', '.join(others[:3])} among its tensors" if others else "holds no tensor"
        raise UnreadableWeights(f"{file} {found}; save a state_dict with torch.save")
    return {str(name): tensor for name, tensor in content.items()}
