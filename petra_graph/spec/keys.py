"""The keys of a table: their declaration, and the validators of their values."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import attrs
from attrs import field

from petra_graph.errors import shown
from petra_graph.spec.bounds import AtMost, together
from petra_graph.units import byte_count

T = TypeVar("T")
LONGEST_NAME = 200
"""Bytes: file systems have 255 for a name, and a run's directory adds its time and a random part."""
NODES = 20_000
"""Nodes of a network: the planner's work and the page of a plan grow with them."""
MOST_NODES = AtMost(NODES)
IS_PATH, IS_CODE = "is_path", "is_code"
"""In the metadata of a key whose value names a file or a folder, or code as "module:attribute"."""


def key(
    default: Any, text: str, *, unit: str = "", validator: Any = None, is_path: bool = False, is_code: bool = False
) -> Any:
    """Return an optional key of a table: its default, its meaning, its unit, and a validator or a list of them.

    The value of a key that `is_path` names what is read; it is relative to the folder of the file that gives it. That of a key
    that `is_code` names a class, a function or an object, in a module that is found as modules of local plugins are.
    """
    checked = together(*validator) if isinstance(validator, list | tuple) else validator
    metadata = {"help": text, "unit": unit, IS_PATH: is_path, IS_CODE: is_code}
    return field(default=default, validator=checked, metadata=metadata)


def keys_with(mark: str, cls: type) -> tuple[str, ...]:
    """Return the keys of a table that are marked by `IS_PATH` or `IS_CODE`."""
    return tuple(attribute.name for attribute in attrs.fields(cls) if attribute.metadata.get(mark))


def required(text: str, *, unit: str = "", validator: Any = None) -> Any:
    return key(attrs.NOTHING, text, unit=unit, validator=validator)


def table(cls: type) -> Any:
    """Return a key whose value is a table; every key of the table has a default."""
    return field(factory=cls, metadata={"help": (cls.__doc__ or "").partition("\n")[0]})


def tables(text: str) -> Any:
    """Return a key whose value is a table of tables, each under a name of its own."""
    return field(factory=dict, metadata={"help": text, "unit": ""})


def documented(cls: type[T]) -> type[T]:
    """Add to the documentation of a table's class what each of its keys means, for `help()`."""
    fields = "\n".join(f"    {one.name}: {one.metadata['help'].rstrip('.')}." for one in attrs.fields(cls))  # type: ignore[arg-type]
    cls.__doc__ = f"{cls.__doc__}\n\nAttributes:\n{fields}\n"
    return cls


def options(owner: str) -> Any:
    """Return the key `options`, which only the plugin's own class checks."""
    return field(factory=dict, metadata={"help": f"the {owner}'s own options"})


def sizes(_: object, __: object, value: str | tuple[str, ...] | None) -> None:
    """Refuse text that is not a size of at least one byte."""
    for size in (value,) if isinstance(value, str) else value or ():
        if not byte_count(size):
            raise ValueError(f"must be at least a byte (got {shown(size)})")


def file_name(_: object, __: object, value: str) -> None:
    """Refuse a name that cannot be a part of a path, or of the keys of weights, which "/" separates."""
    if not re.fullmatch(r"[\w-][\w.-]*", value):
        raise ValueError(
            f'must consist of letters, digits, "_", "-" and ".", and not begin with "." (got {shown(value)})'
        )
    if len(value.encode()) > LONGEST_NAME:
        raise ValueError(
            f"must have at most {LONGEST_NAME} bytes, as a part of a file's name (got {len(value.encode()):,})"
        )
