"""The shape of a JSON value, and where a value is not of it: for plans, summaries and manifests that anyone may have changed.

    str, int, float, bool       leaves; a whole number is a number, too
    [item]                      a list of such items
    {key: value}                an object with these keys, and any others
    Each(value)                 an object with any keys
    (a, b, None)                either

Decision: not cattrs, which reads profiles. Each of its readers would need a hook so that nothing is converted ("3" is no
number), and one more for messages that name the place; and views show the document itself, with keys of later versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import frozen

_MOST = 2**63
"""A number beyond it cannot count bytes or operations."""


@frozen
class Later:
    """The shape of a value whose key was added later: older files do not have it."""

    shape: Any


@frozen
class Each:
    """The shape of an object whose keys are any, some of which it has, and whose values have one shape."""

    shape: Any
    needed: Sequence[str] = ()


def faults(value: Any, shape: Any, path: str) -> Iterator[str]:
    """Yield where a value is not of its shape: "stages[2].depth is not a whole number".

    Args:
        value: as `json.loads` returns it.
        shape: what it should be.
        path: the value itself, for messages: "the plan".
    """
    match shape:
        case Later():
            yield from faults(value, shape.shape, path)
        case dict() | Each() if isinstance(value, dict):
            yield from _faults_of_keys(value, shape, path)
        case [item] if isinstance(value, list):
            for index, one in enumerate(value):
                yield from faults(one, item, f"{path}[{index}]")
        case tuple():
            if all(next(faults(value, one, path), None) is not None for one in shape):
                yield f"{path} is not of a type that it may have"
        case dict() | list() | Each():
            yield f"{path} is not {'a list' if isinstance(shape, list) else 'an object'}"
        case _ if not _is(value, shape):
            yield f"{path} is not {_WORDS[shape]}"


def _faults_of_keys(value: dict[str, Any], shape: dict[str, Any] | Each, path: str) -> Iterator[str]:
    if isinstance(shape, Each):
        needed, shapes = shape.needed, dict.fromkeys(value, shape.shape)
    else:
        needed, shapes = [key for key, item in shape.items() if not isinstance(item, Later)], shape
    yield from (f"{path} has no {key}" for key in needed if key not in value)
    for key in shapes:
        if key in value:
            yield from faults(value[key], shapes[key], key if path.startswith("the ") else f"{path}.{key}")


_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "a truth value", None: "null"}


def _is(value: Any, kind: type | None) -> bool:
    if kind in (int, float):
        numbers = int if kind is int else (int, float)
        return (
            isinstance(value, numbers) and not isinstance(value, bool) and abs(value) < _MOST  # of nan, too
        )
    return value is None if kind is None else type(value) is kind
