"""Values of Python as the tables of a TOML file: classes, functions, modules, Datasets and losses. This imports no torch.

A class or function goes by the name "module:attribute", by which every process of a run, and whoever opens it later, finds it again.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from datetime import date, time
from functools import partial
from pathlib import PurePath
from types import FunctionType
from typing import Any

import attrs

from petra_graph.errors import SpecError, kind_of, shown
from petra_graph.spec.strict_values import plain


class Change(str):
    """An assignment by Python code, which was not written as `--set`."""

    __slots__ = ()


def assignments(changes: Mapping[str, Any] | None) -> list[str]:
    """Return values by key as overrides; SpecError: TOML cannot write a value; TypeError: they are no mapping."""
    if changes is not None and not isinstance(changes, Mapping):
        raise TypeError(f'changes are values by key, as in {{"run.epochs": 3}} (got {kind_of(changes)})')
    return [Change(f"{key}={shown(toml_values(value, key))}") for key, value in (changes or {}).items()]


def toml_values(value: Any, key: str = "") -> Any:
    """Return values as TOML has them, without None: code by its name, paths as texts, numpy's numbers as Python's; `key` is the value's, for messages."""
    value = plain(value)
    if isinstance(value, type | FunctionType):
        name = code_name(value)
        return name if not key or "." in key else {"name": name}  # optimizer=torch.optim.AdamW
    if attrs.has(type(value)):
        items = {one.name: getattr(value, one.name) for one in attrs.fields(type(value))}
        value = {name: item for name, item in items.items() if item != {}}
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        inside = f"{key}." if key else ""
        return {name: toml_values(item, f"{inside}{name}") for name, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [toml_values(item, f"{key}.{index}") for index, item in enumerate(value)]
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, str | int | float | date | time):
        return value
    hint = "give a text, a number, a list or a mapping with texts as keys; of code, a class or function, as a run makes objects itself"
    raise SpecError(f"{key} cannot be {kind_of(value)}", hint)


def code_name(code: Any) -> str:
    """Return "module:attribute" of a class or function, or of an object that a module has; SpecError: it is not at the top level of a module."""
    if isinstance(code, type | FunctionType):
        if "<" not in code.__qualname__:  # <locals>, <lambda>
            return f"{code.__module__}:{code.__qualname__}"
    else:
        # First where others can import it.
        for module, content in sorted(sys.modules.items(), key=lambda item: item[0] == "__main__"):
            for name, one in list(getattr(content, "__dict__", {}).items()):
                if one is code and not name.startswith("_") and module != "__mp_main__":
                    return f"{module}:{name}"
    message = f"{getattr(code, '__qualname__', kind_of(code))} has no name at the top level of a module, by which a run finds it again"
    raise SpecError(message, "define it there, or in a notebook's cell, or give a function or class that makes it")


def module_table(module: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table `architecture` of a module's class, a function that makes it, or a `functools.partial` of one; `given` are other keys."""
    code, kwargs = (module.func, module.keywords) if isinstance(module, partial) else (module, {})
    if isinstance(module, partial) and module.args:  # left out, they would silently be the defaults
        raise SpecError(f"a partial gives arguments by their names (got {module.args})", "as in partial(Net, width=8)")
    options = {"build": code_name(code), **({"kwargs": kwargs} if kwargs else {})}
    return {"name": "module", **given, "options": {**options, **given.get("options", {})}}


def from_torch(
    train: Any,
    test: Any,
    *,
    classes: int | Sequence[str] | None = None,
    validation: Any = None,
    plain: Any = None,
    **more: Any,
) -> dict[str, Any]:
    """Return the table `data` of a specification that reads torch Datasets: data=pg.from_torch(train, test, classes=10, batch=32).

    Args:
        train: a Dataset, map-style or iterable, at the top level of a module or notebook, or a function or class that makes one. A sample is
            (x, y), each a tensor, an array, a number or a PIL image.
        test: a map-style Dataset, in the same way.
        classes: their number or their names; None: y is no class, as in regression.
        validation: a Dataset by which the best weights are chosen, in the same way; or the share of `plain` that is.
        plain: the training Dataset without augmentation, in the same way: `train` itself, if that augments nothing.
        more: other keys of the table, as in batch=32, workers=2.
    """
    share = validation if isinstance(validation, float) else None
    named = {"train": train, "test": test, "plain": plain, "validation": None if share else validation}
    options = {key: code_name(one) for key, one in named.items() if one is not None} | {"classes": classes}
    if validation is not None:
        more["validation"] = share or "validation"
    return {"name": "torch", "options": options, **more}


def made_again(module: Any) -> dict[str, Any]:
    """Return the table of a loss that is an object already: nn.CrossEntropyLoss(label_smoothing=0.1).

    It is its class, with the arguments that make an equal one, where its attributes have their names; else the object's own name.
    """
    parameters = inspect.signature(type(module)).parameters
    options = {name: getattr(module, name, one.default) for name, one in parameters.items()}
    plain = all(one is None or isinstance(one, str | int | float | list | tuple) for one in options.values())
    if plain and not module.state_dict() and "<" not in type(module).__qualname__:
        again = type(module)(**options)
        public = [{key: one for key, one in vars(made).items() if key[:1] != "_"} for made in (module, again)]
        if public[0] == public[1]:
            return {"name": type(module), "options": options}
    return {"name": code_name(module)}
