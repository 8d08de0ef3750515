"""Classes in a specification that is made in code, as the names "module:Class" by which every process finds them again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from petra_graph.errors import SpecError


def named(value: Any) -> Any:
    """Return values as TOML has them: classes by their names, paths as texts, without what is None.

    Raises:
        SpecError: a class is not at the top level of a module.
    """
    if isinstance(value, type):
        return class_name(value)
    if isinstance(value, Mapping):
        return {key: named(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [named(item) for item in value]
    return str(value) if isinstance(value, PurePath) else value


def class_name(cls: type) -> str:
    """Return "module:Class".

    Raises:
        SpecError: the class is not at the top level of a module.
    """
    if "<locals>" in cls.__qualname__:
        raise SpecError(
            f"{cls.__qualname__} is defined within a function, where a run cannot find it again",
            "define the class at the top level of a module or notebook",
        )
    return f"{cls.__module__}:{cls.__qualname__}"
