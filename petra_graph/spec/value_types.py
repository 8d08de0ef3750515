"""The types of TOML values, in words or as JSON schema, by which editors check a specification."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

import attrs

from petra_graph.errors import shown
from petra_graph.spec.bounds import Bound, Schema

SINGULAR = {int: "an integer", float: "a number", str: "a string", bool: "true or false", Any: "anything"}
PLURAL = {int: "integers", float: "numbers", str: "strings", bool: "booleans", Any: "values"}


def describe(kind: Any) -> str:
    """Return a value of this type in words, with the article: "an integer", "a list of strings".

    Raises:
        TypeError: TOML values cannot be read as this type.
    """
    if kind in SINGULAR:
        return SINGULAR[kind]
    if is_union(kind):
        return ", or ".join(describe(member) for member in members(kind))
    if is_literal(kind):
        listed = ", ".join(shown(value) for value in get_args(kind))
        return listed if len(get_args(kind)) == 1 else f"one of {listed}"
    if is_list(kind):
        return f"a list of {_items(kind)}"
    if is_table(kind):
        return "a table"
    raise TypeError(f"{kind!r} cannot be read from TOML")


def is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def is_literal(kind: Any) -> bool:
    return get_origin(kind) is Literal


def is_list(kind: Any) -> bool:
    """Return whether the type is read from a TOML array."""
    return get_origin(kind) in (tuple, list, Sequence)


def is_mapping(kind: Any) -> bool:
    """Return whether the type is a table of free keys."""
    return get_origin(kind) in (dict, Mapping)


def is_table(kind: Any) -> bool:
    """Return whether the type is read from a TOML table."""
    return is_mapping(kind) or (isinstance(kind, type) and attrs.has(kind))


def members(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union without None, since TOML has no null; any other type is the only one."""
    return tuple(member for member in get_args(kind) if member is not type(None)) if is_union(kind) else (kind,)


def item_types(kind: Any, length: int) -> tuple[Any, ...] | None:
    """Return the type of each of `length` items of a list; None where the list must have another length."""
    arguments = get_args(kind)
    if get_origin(kind) is not tuple:
        return (arguments[0],) * length
    if len(arguments) == 2 and arguments[1] is Ellipsis:  # noqa: PLR2004  tuple[item, ...]
        return (arguments[0],) * length
    return arguments if len(arguments) == length else None


def _items(kind: Any) -> str:
    arguments = get_args(kind)
    if get_origin(kind) is tuple and arguments[-1] is not Ellipsis:
        same = len(set(arguments)) == 1
        return f"{len(arguments)} {_plural(arguments[0])}" if same else ", ".join(map(describe, arguments))
    return _plural(arguments[0])


def _plural(kind: Any) -> str:
    if kind in PLURAL:
        return PLURAL[kind]
    if is_list(kind):
        return f"lists of {_items(kind)}"
    if is_table(kind):
        return "tables"
    return f"values, each {describe(kind)}"


SIMPLE: dict[Any, str] = {int: "integer", float: "number", str: "string", bool: "boolean"}


class NoTomlType(TypeError):
    """TOML values cannot be read as the type `kind`, that of the field at `path`."""

    def __init__(self, kind: Any, path: tuple[str, ...] = ()) -> None:
        is_class = isinstance(kind, type) and get_origin(kind) is None
        named = f"{kind.__module__}.{kind.__qualname__}" if is_class else repr(kind)
        field = f"`{'.'.join(path)}` is of type {named}; " if path else f"{named} is not allowed; "
        super().__init__(f"{field}allowed are {_ALLOWED}")
        self.kind, self.path = kind, path


_ALLOWED = "bool, int, float, str, Literal, lists, tuples and dicts of these, unions of them, and attrs classes"


def class_schema(cls: type, *, complete: bool) -> Schema:
    """Return the schema of a table.

    Args:
        cls: an attrs class.
        complete: the table must have all its required keys. A table outside of arrays need not: an extended file may
            hold the rest.

    Raises:
        NoTomlType: TOML values cannot be read as the type of one of its fields.
    """
    attrs.resolve_types(cls)
    fields = attrs.fields(cls)
    schema: Schema = {
        "type": "object",
        "properties": {field.name: _field_schema(field, complete=complete) for field in fields},
        "additionalProperties": False,
    }
    required = [field.name for field in fields if field.default is attrs.NOTHING]
    if complete and required:
        schema["required"] = required
    return schema


def type_schema(kind: Any, *, complete: bool) -> Schema:  # noqa: PLR0911  one case a form of type
    """Return the schema of a value.

    Raises:
        NoTomlType: TOML values cannot be read as this type.
    """
    if kind in SIMPLE:
        return {"type": SIMPLE[kind]}
    if kind is Any:
        return {}
    if is_literal(kind):
        return {"enum": list(get_args(kind))}
    if is_union(kind):
        schemas = [type_schema(member, complete=complete) for member in members(kind)]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    if is_list(kind):
        return _list_schema(kind)
    if is_mapping(kind):
        return {"type": "object", "additionalProperties": type_schema(get_args(kind)[1], complete=complete)}
    if isinstance(kind, type) and attrs.has(kind):
        return class_schema(kind, complete=complete)
    raise NoTomlType(kind)


def _field_schema(field: attrs.Attribute[Any], *, complete: bool) -> Schema:
    try:
        schema = type_schema(field.type, complete=complete)
    except NoTomlType as error:
        raise NoTomlType(error.kind, (field.name, *error.path)) from None
    if isinstance(field.validator, Bound):
        schema = field.validator.narrow(schema)
    text = field.metadata.get("help", "")
    unit = field.metadata.get("unit", "")
    if text or unit:
        schema["description"] = f"{text} ({unit})" if text and unit else text or unit
    default = field.default
    if default is not None and default is not attrs.NOTHING and not hasattr(default, "factory"):
        schema["default"] = as_mapping(default)
    return schema


def _list_schema(kind: Any) -> Schema:
    arguments = get_args(kind)
    if get_origin(kind) is tuple and arguments[-1] is not Ellipsis:
        items = [type_schema(item, complete=True) for item in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    return {"type": "array", "items": type_schema(arguments[0], complete=True)}


def as_mapping(value: Any) -> Any:
    """Return a value in TOML's types; keys without a value and empty options are left out."""
    if attrs.has(type(value)):
        items = {attribute.name: getattr(value, attribute.name) for attribute in attrs.fields(type(value))}
        return as_mapping({key: item for key, item in items.items() if item != {}})
    if isinstance(value, Mapping):
        return {key: as_mapping(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [as_mapping(item) for item in value]
    return plain(value)


def plain(value: Any) -> Any:
    """Return a number of numpy's as Python's own; this imports no numpy."""
    is_number = type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()
    return value.item() if is_number else value


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys of nested tables with their values, both as text."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = dict(enumerate(value, start=1))
    if not isinstance(value, dict):
        yield name, shown(value)
        return
    for key, item in value.items():
        yield from flat(item, f"{name}.{key}" if name else key)
