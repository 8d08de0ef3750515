"""Values of a specification that is made in code, as TOML has them: classes and functions by the names "module:attribute" by which every process finds them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, time
from pathlib import PurePath
from types import FunctionType
from typing import Any

from petra_graph.errors import SpecError, kind_of, shown
from petra_graph.spec.layers import Change


def toml_values(value: Any, key: str) -> Any:
    """Return values as TOML has them: classes and functions by their names, paths as texts, and None left out.

    Args:
        value: of a specification that is made in code.
        key: the value's, such as "data.name", for messages; "" for a whole specification.

    Raises:
        SpecError: TOML cannot write a value, or a class or function is not at the top level of a module.
    """
    if isinstance(value, type | FunctionType):
        name = code_name(value)
        return name if not key or "." in key else {"name": name}  # optimizer=torch.optim.AdamW
    if isinstance(value, Mapping):
        wrong = [name for name in value if not isinstance(name, str)]
        if wrong:
            raise SpecError(f"{key or 'the specification'} cannot have the key {wrong[0]!r}", "keys are texts")
        inside = f"{key}." if key else ""
        return {name: toml_values(item, f"{inside}{name}") for name, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [toml_values(item, f"{key}.{index}") for index, item in enumerate(value)]
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, str | int | float | date | time):
        return value
    hint = "values are texts, numbers, booleans, lists and mappings"
    if key in {"data", "optimizer"} or key.endswith((".name", ".block")):
        hint = (
            f"a run makes it itself: give the class, {type(value).__qualname__}, or the name of a plugin; "
            "of a torch Dataset, data=pg.from_torch(...), of a torch.nn.Module, pg.buffered(...)"
        )
    raise SpecError(f"{key} cannot be {kind_of(value)}", hint)


def assignments(changes: Mapping[str, Any] | None) -> list[str]:
    """Return values by key as overrides; a class may be given in place of its name.

    Raises:
        TypeError: they are not a mapping.
        SpecError: TOML cannot write a value.
    """
    if changes is not None and not isinstance(changes, Mapping):
        raise TypeError(f'changes are values by key, as in {{"run.epochs": 3}} (got {kind_of(changes)})')
    return [Change(f"{key}={shown(toml_values(value, key))}") for key, value in (changes or {}).items()]


def code_name(code: type | Callable[..., Any]) -> str:
    """Return "module:attribute".

    Raises:
        SpecError: the class or function is not at the top level of a module.
    """
    if "<" in code.__qualname__:  # <locals>, <lambda>
        raise SpecError(
            f"{code.__qualname__} has no name at the top level of a module, and `evaluate`, `load` and a resume find code by its name",
            "define it at the top level of a module or notebook",
        )
    return f"{code.__module__}:{code.__qualname__}"
