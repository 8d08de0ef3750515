"""Classes and functions in a specification that is made in code, as the names "module:attribute" by which every process finds them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath
from types import FunctionType
from typing import Any

from petra_graph.errors import SpecError


def named(value: Any) -> Any:
    """Return values as TOML has them: classes and functions by their names, paths as texts, without what is None.

    Raises:
        SpecError: a class or function is not at the top level of a module.
    """
    if isinstance(value, type | FunctionType):
        return code_name(value)
    if isinstance(value, Mapping):
        return {key: named(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [named(item) for item in value]
    return str(value) if isinstance(value, PurePath) else value


def code_name(code: type | Callable[..., Any]) -> str:
    """Return "module:attribute".

    Raises:
        SpecError: the class or function is not at the top level of a module.
    """
    if "<" in code.__qualname__:  # <locals>, <lambda>
        kind = "class" if isinstance(code, type) else "function"
        raise SpecError(
            f"{code.__qualname__} is defined within a function, where a run cannot find it again",
            f"define the {kind} at the top level of a module or notebook",
        )
    return f"{code.__module__}:{code.__qualname__}"
