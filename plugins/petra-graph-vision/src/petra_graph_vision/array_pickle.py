"""Dictionaries of numpy arrays in Python pickles, of which nothing is run.

An unpickler calls what a file names. This one knows seven names, those that numpy writes, and each leads to a function of this module, which
makes an array only of plain numbers, and of bytes that are in the file.

Decision: numpy's own functions are not among them. A file can give numpy's types and arrays a state of its choice, over memory of its choice.

Decision: it is the standard library's unpickler in Python. The one in C takes memory for whatever number of memos or bytes a damaged file
claims; a `bytearray` is read as bytes here for the same reason.

Source: https://docs.python.org/3/library/pickle.html#restricting-globals; numpy's forms, `ndarray.__reduce__` and `__reduce_ex__(5)`.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from attrs import define, frozen

_PLAIN = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248])")
"""Names of plain types of numbers."""


class ArrayPickleError(Exception):
    """The file is not a pickle of a dictionary of arrays, lists, numbers and texts."""


def read_array_pickle(path: Path) -> dict[str, Any]:
    """Return the dictionary in a pickle of any protocol, from Python 2 or 3; texts of Python 2 are read as latin-1.

    Raises:
        ArrayPickleError: the file is damaged, or holds something else.
        OSError, MemoryError: the file cannot be read.
    """
    try:
        found = _Unpickler(BytesIO(path.read_bytes()), encoding="latin-1").load()
    except (ArrayPickleError, OSError, MemoryError):
        raise
    except EOFError:
        raise ArrayPickleError("it is cut short") from None
    except Exception as error:
        raise ArrayPickleError(f"it is damaged: {str(error) or type(error).__name__}") from error
    if not isinstance(found, dict):
        raise ArrayPickleError(f"it must hold a dictionary (got {type(found).__name__})")
    return {key: one.values if isinstance(one, _Array) else one for key, one in found.items()}


_HANDLERS: Mapping[int, Any] = pickle._Unpickler.dispatch  # noqa: SLF001  see the decision above


class _Unpickler(pickle._Unpickler):  # noqa: SLF001
    dispatch: ClassVar = {**_HANDLERS, pickle.BYTEARRAY8[0]: _HANDLERS[pickle.BINBYTES8[0]]}

    def find_class(self, module: str, name: str, /) -> Any:
        own = module.removeprefix("numpy._core.").removeprefix("numpy.core.").strip("_")
        if (own, name) not in _NAMES:
            raise ArrayPickleError(f"it names {module}.{name}, but only arrays are allowed")
        return _NAMES[own, name]


@frozen
class _Function:
    """What the file may call; it takes no state."""

    call: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.call(*arguments)

    def __setstate__(self, state: object) -> None:
        raise ArrayPickleError("it sets the state of a function")


@define
class _Type:
    """A type of plain numbers."""

    code: str
    order: str = "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.code).newbyteorder(">" if self.order == ">" else "<")


@define
class _Array:
    """An array, whose values are its state."""

    values: Any = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, columns, raw = state
        content = raw.encode("latin-1") if isinstance(raw, str) else bytes(raw)  # Python 2's bytes come as a text
        self.values = np.frombuffer(content, kind.dtype).reshape(shape, order="F" if columns else "C")


def _type(code: Any, *_: Any) -> _Type:
    if not isinstance(code, str) or not _PLAIN.fullmatch(code):
        raise ArrayPickleError(f"it has a type of numpy's that is not of plain numbers: {str(code)[:20]!r}")
    return _Type(code)


def _from_buffer(raw: Any, kind: _Type, shape: Any, order: str) -> _Array:
    return _Array(np.frombuffer(raw, kind.dtype).reshape(shape, order="F" if order == "F" else "C"))


def _encoded(text: str, encoding: str) -> bytes:
    if encoding not in {"latin1", "latin-1"}:
        raise ArrayPickleError(f"it encodes a text as {encoding[:20]!r}, and arrays are written as latin1")
    return text.encode("latin-1")


def _bytes(raw: Any = b"", encoding: str = "latin1") -> bytes:
    if not isinstance(raw, str | bytes):  # a number would be a length
        raise ArrayPickleError(f"it makes bytes of a value of type {type(raw).__name__}")
    return _encoded(raw, encoding) if isinstance(raw, str) else raw


_NAMES: Mapping[tuple[str, str], Any] = {
    ("numpy", "ndarray"): None,  # what `_reconstruct` is given
    ("multiarray", "_reconstruct"): _Function(lambda *_: _Array()),
    ("multiarray", "scalar"): _Function(lambda kind, raw: np.frombuffer(_bytes(raw), kind.dtype)[0].item()),
    ("numpy", "dtype"): _Function(_type),
    ("numeric", "_frombuffer"): _Function(_from_buffer),
    ("codecs", "encode"): _Function(_encoded),
    ("builtins", "bytearray"): _Function(_bytes),
    ("builtin", "bytearray"): _Function(_bytes),
    ("builtin", "bytes"): _Function(_bytes),  # an empty one, in protocols 0 to 2
}
