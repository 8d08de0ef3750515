"""Classes and functions in a specification that is made in code, as the names "module:attribute" by which every process finds them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, time
from pathlib import PurePath
from types import FunctionType
from typing import Any

from petra_graph.errors import SpecError, kind_of

_OPTIMIZER = (
    'give its name, as in optimizer={"name": "adamw", "options": {"lr": 1e-3}}; `petra-graph list optimizers` shows all'
)
_VALUES = "values are texts, numbers, booleans, lists and mappings"


def toml_values(value: Any, key: str) -> Any:
    """Return values as TOML has them: classes and functions by their names, paths as texts, and None left out.

    Args:
        value: of a specification that is made in code.
        key: the value's, such as "data.name", for messages; "" for a whole specification.

    Raises:
        SpecError: TOML cannot write a value, or a class or function is not at the top level of a module.
    """
    if isinstance(value, type | FunctionType):
        if value.__module__.startswith("torch.optim.") and "lr_scheduler" not in value.__module__:
            raise _no_value(value, "optimizer")
        return code_name(value)
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
    raise _no_value(value, key)


def _no_value(value: Any, key: str) -> SpecError:
    """Return the refusal of an object that a run makes itself."""
    hint = _VALUES
    if key in {"data", "data.name"} and hasattr(value, "dataset"):
        hint = "a run makes the batches itself: give the data sets, as in data=pg.from_torch(train, test, batch=32)"
    elif key == "optimizer":
        hint = _OPTIMIZER
    elif key == "data":
        hint = f'a run opens its data set itself: give the class, as in data={{"name": {type(value).__qualname__}}}; '
        hint += "of a torch Dataset, data=pg.from_torch(train, test, batch=32)"
    elif key.endswith((".name", ".block")):
        hint = f"a run builds it itself: give the class, {type(value).__qualname__}, or the name of a plugin; of a torch.nn.Module, pg.buffered(...)"
    return SpecError(f"{key} cannot be {kind_of(value)}", hint)


def code_name(code: type | Callable[..., Any]) -> str:
    """Return "module:attribute".

    Raises:
        SpecError: the class or function is not at the top level of a module.
    """
    if "<" in code.__qualname__:  # <locals>, <lambda>
        kind = "class" if isinstance(code, type) else "function"
        where = (
            "a lambda has no name"
            if code.__name__ == "<lambda>"
            else f"{code.__qualname__} is defined within a function"
        )
        raise SpecError(
            f"{where}, and the run's record could not say what it was: `evaluate`, `load` and a resume find code by its name",
            f"define the {kind} at the top level of a module or notebook, with a name",
        )
    return f"{code.__module__}:{code.__qualname__}"
