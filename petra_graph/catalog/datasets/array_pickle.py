"""Dictionaries of numpy arrays in Python pickles, read without unpickling.

A pickle is a program for a stack machine that calls whatever it names; even restricted to numpy's own names it can make an
array over memory of its choice. Here the standard library's `pickletools` splits the file into opcodes, and a machine of
this module's own knows those that dictionaries, lists, tuples, numbers, texts and arrays are written with. A name on
the stack is a text, which no opcode can call; the seven that numpy writes lead to functions of this module, which check
types, shapes and lengths before they make anything.

Decision: a reader of our own, since no library has one. `pickle.Unpickler` with a restricted `find_class` still calls what it
allows, with arguments of the file's choice; `numpy.load` unpickles, and `torch.load(weights_only=True)` reads torch's own files.

Decision: an array is a view of the bytes in the file, and copies count against a budget that follows from the file's
length. So a file takes no more memory than a few times its own length, whatever it claims.

Source: the protocol, https://docs.python.org/3/library/pickletools.html; numpy's forms, `ndarray.__reduce__` and
`__reduce_ex__(5)`, https://numpy.org/doc/stable/reference/generated/numpy.ndarray.__reduce__.html.
"""

from __future__ import annotations

import math
import mmap
import pickletools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, frozen
from numpy.typing import NDArray

MOST_BYTES = 2**32
"""Longer files are refused; the longest published one, a batch of downsampled ImageNet, has a tenth of that."""
_COPIES = 4
"""How many times its own length a file may make the reader copy."""
_PLAIN = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248])")
"""Names of plain types of numbers."""
_MOST_DIMENSIONS = 32

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NUMBERS = frozenset({"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"})
_TEXTS = frozenset(
    {"STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
)
_BYTES = frozenset({"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"})
_VALUES = _NUMBERS | _TEXTS | _BYTES
"""Opcodes that push their argument."""


class ArrayPickleError(Exception):
    """The file is not a pickle of a dictionary of arrays, lists, numbers and texts."""


def read_array_pickle(path: Path) -> dict[str, Any]:
    """Return the dictionary in a pickle: its keys are texts, its values arrays, lists, tuples, numbers and texts.

    Args:
        path: a file of protocol 0 to 5, from Python 2 or 3. Texts of Python 2 are read as latin-1.

    Raises:
        ArrayPickleError: the file holds anything else, or is damaged.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        length = file.seek(0, 2)
        if not length:
            raise ArrayPickleError("the file is empty")
        if length > MOST_BYTES:
            raise ArrayPickleError(f"the file has {length} bytes; at most {MOST_BYTES} are allowed")
        with mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ) as content:
            machine = _Machine(budget=_COPIES * length)
            try:
                found = machine.run(content)
            except (ValueError, IndexError, KeyError, OverflowError, TypeError, AttributeError) as error:
                # pickletools on damaged opcodes, or an opcode that finds another thing on the stack than it needs.
                raise ArrayPickleError(f"the pickle is damaged: {str(error) or type(error).__name__}") from error
    if not isinstance(found, dict):
        raise ArrayPickleError(f"it must hold a dictionary (got {type(found).__name__})")
    return {key: value.finished() if isinstance(value, _Array) else value for key, value in found.items()}


@frozen
class _Name:
    """A name in the file, which nothing imports."""

    module: str
    name: str


class _Mark:
    """The stack's mark, at which a sequence of items begins."""


@define
class _Type:
    """A plain type of numbers, whose byte order follows in a second step."""

    code: str
    order: str = "<"

    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.code).newbyteorder("=" if self.order == "|" else self.order)  # type: ignore[arg-type]


@define
class _Array:
    """An array, whose contents follow in a second step."""

    value: NDArray[Any] | None = None

    def finished(self) -> NDArray[Any]:
        """Return the array with its contents."""
        if self.value is None:
            raise ArrayPickleError("an array has no contents")
        return self.value


class _Machine:
    """The stack machine of one file."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, content: mmap.mmap) -> Any:
        """Return what is on the stack when the program stops."""
        for opcode, argument, _ in pickletools.genops(content):  # type: ignore[arg-type]
            if opcode.name == "STOP":
                return self._stack.pop()
            self._perform(opcode.name, argument)
        raise ArrayPickleError("the pickle does not end")

    def _perform(self, name: str, argument: Any) -> None:  # noqa: C901, PLR0912  one case an opcode
        stack = self._stack
        if name in _VALUES:
            stack.append(argument)
            return
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
            return
        match name:
            case "PROTO" | "FRAME":
                return
            case "MARK":
                stack.append(_Mark)
            case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE":
                stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[name]())
            case "TUPLE" | "LIST" | "DICT":
                items = self._marked()
                stack.append(tuple(items) if name == "TUPLE" else items if name == "LIST" else {})
                if name == "DICT":
                    self._set(stack[-1], items)
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(name[-1])
                items = stack[-count:]
                if len(items) < count:
                    raise ArrayPickleError("the stack is too short")
                stack[-count:] = [tuple(items)]
            case "APPEND" | "APPENDS":
                items = [stack.pop()] if name == "APPEND" else self._marked()
                _expected(stack[-1], list).extend(items)
            case "SETITEM" | "SETITEMS":
                items = [stack.pop(-2), stack.pop()] if name == "SETITEM" else self._marked()
                self._set(_expected(stack[-1], dict), items)
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "GLOBAL":
                stack.append(_Name(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                attribute, module = _expected(stack.pop(), str), _expected(stack.pop(), str)
                stack.append(_Name(module, attribute))
            case "REDUCE":
                arguments = _expected(stack.pop(), tuple)
                stack.append(self._called(_expected(stack.pop(), _Name), arguments))
            case "BUILD":
                self._build(_expected(stack.pop(), tuple))
            case _:
                raise ArrayPickleError(f"it has the opcode {name}, which arrays do not need")

    def _marked(self) -> list[Any]:
        """Pop the items down to the mark."""
        for at in reversed(range(len(self._stack))):
            if self._stack[at] is _Mark:
                items = self._stack[at + 1 :]
                del self._stack[at:]
                return items
        raise ArrayPickleError("a mark is missing")

    def _set(self, table: dict[str, Any], items: list[Any]) -> None:
        for key, value in zip(items[::2], items[1::2], strict=True):
            table[_expected(key, str)] = value

    def _called(self, name: _Name, arguments: tuple[Any, ...]) -> Any:
        """Return the result of one of the calls that numpy writes."""
        module = name.module.removeprefix("numpy._core.").removeprefix("numpy.core.").removeprefix("__")
        function = self._functions.get((module.removesuffix("__"), name.name))
        if function is None:
            raise ArrayPickleError(f"it names {name.module}.{name.name}, but only arrays are allowed")
        return function(self, *arguments)

    def _build(self, state: tuple[Any, ...]) -> None:
        match target := self._stack[-1], state:
            case _Type(), (int(), ("<" | ">" | "=" | "|") as order, *_):
                target.order = order
            case _Array(), (int(), tuple(shape), _Type() as kind, bool() | int() as columns, str() | bytes() as raw):
                target.value = self._array(raw, kind, shape, "F" if columns else "C")
            case _:
                raise ArrayPickleError("it sets the state of something that is neither an array nor a type of numbers")

    def _array(self, raw: str | bytes | bytearray, kind: _Type, shape: tuple[Any, ...], order: Any) -> NDArray[Any]:
        dtype, content = kind.dtype(), self._bytes(raw)
        if len(shape) > _MOST_DIMENSIONS or not all(type(size) is int and size >= 0 for size in shape):
            raise ArrayPickleError("an array's shape is damaged")
        if math.prod(shape) * dtype.itemsize != len(content):
            raise ArrayPickleError(f"an array of shape {list(shape)} and type {dtype} has {len(content)} bytes")
        return np.frombuffer(content, dtype).reshape(shape, order="F" if order == "F" else "C")

    def _bytes(self, raw: Any) -> bytes | bytearray:
        """Return bytes; those that Python 2 wrote come as texts."""
        if isinstance(raw, str):
            self._budget -= len(raw)
            if self._budget < 0:
                raise ArrayPickleError("it copies its contents too often")
            return raw.encode("latin-1")
        content: bytes | bytearray = _expected(raw, bytes | bytearray)
        return content

    def _reconstruct(self, _: Any, __: Any, ___: Any) -> _Array:
        return _Array()

    def _dtype(self, code: Any, _: Any = False, __: Any = False) -> _Type:
        if not isinstance(code, str) or not _PLAIN.fullmatch(code):
            raise ArrayPickleError(f"it has a type of numpy's that is not of plain numbers: {str(code)[:20]!r}")
        return _Type(code.lstrip("<>=|"), code[0] if code[0] in "<>" else "<")

    def _scalar(self, kind: Any, raw: Any) -> Any:
        return self._array(raw, _expected(kind, _Type), (1,), "C")[0].item()

    def _frombuffer(self, raw: Any, kind: Any, shape: Any, order: Any) -> _Array:
        return _Array(self._array(raw, _expected(kind, _Type), _expected(shape, tuple), order))

    def _encode(self, text: Any, encoding: Any) -> bytes | bytearray:
        if encoding not in ("latin1", "latin-1"):
            raise ArrayPickleError(f"it encodes a text as {str(encoding)[:20]!r}, and arrays are written as latin1")
        return self._bytes(_expected(text, str))

    def _bytearray(self, raw: Any = b"", encoding: Any = "latin-1") -> bytes | bytearray:
        return self._encode(raw, encoding) if isinstance(raw, str) else self._bytes(raw)

    _functions: dict[tuple[str, str], Callable[..., Any]] = {  # noqa: RUF012  written nowhere
        ("multiarray", "_reconstruct"): _reconstruct,
        ("multiarray", "scalar"): _scalar,
        ("numpy", "dtype"): _dtype,
        ("numeric", "_frombuffer"): _frombuffer,
        ("_codecs", "encode"): _encode,
        ("builtins", "bytearray"): _bytearray,
        ("builtin", "bytearray"): _bytearray,
        ("builtin", "bytes"): _bytearray,  # an empty one, in protocols 0 to 2
    }


def _expected(value: Any, kind: Any) -> Any:
    """Return a value of the type that an opcode needs."""
    if not isinstance(value, kind):
        raise ArrayPickleError(f"an opcode finds a value of type {type(value).__name__}")
    return value
