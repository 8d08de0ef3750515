"""JSON schema of attrs classes, so that editors check a specification while it is written."""

from __future__ import annotations

from typing import Any, get_args, get_origin

import attrs

from petra_graph.spec.describe import UnknownTypeError, is_list, is_literal, is_mapping, is_union, members
from petra_graph.spec.dump import as_mapping

Schema = dict[str, Any]

SIMPLE: dict[Any, str] = {int: "integer", float: "number", str: "string", bool: "boolean"}
COMPARISONS = {">=": "minimum", ">": "exclusiveMinimum", "<=": "maximum", "<": "exclusiveMaximum"}


def class_schema(cls: type, *, complete: bool) -> Schema:
    """Return the schema of a table.

    Args:
        cls: an attrs class.
        complete: the table must have all its required keys. A table outside of arrays need not: an extended file may
            hold the rest.
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
        UnknownTypeError: TOML values cannot be read as this type.
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
    raise UnknownTypeError(f"{kind!r} cannot be read from TOML")


def limits(field: attrs.Attribute[Any]) -> Schema:
    """Return the limits that a field's validator adds to its type, as far as a schema can express them."""
    return _limits(field.validator, type_schema(field.type, complete=True).get("type"))


def _field_schema(field: attrs.Attribute[Any], *, complete: bool) -> Schema:
    schema = type_schema(field.type, complete=complete)
    schema |= limits(field)
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


def _limits(validator: Any, kind: str | None) -> Schema:
    name = type(validator).__name__
    if name == "_AndValidator":
        return {key: value for part in validator._validators for key, value in _limits(part, kind).items()}  # noqa: SLF001  attrs has no public access
    if name == "_OptionalValidator":
        return _limits(validator.validator, kind)
    if name == "_NumberValidator" and kind in ("integer", "number"):
        return {COMPARISONS[validator.compare_op]: validator.bound}
    if name == "_MinLengthValidator" and kind in ("array", "string"):
        return {"minItems" if kind == "array" else "minLength": validator.min_length}
    if name == "_InValidator" and kind in ("integer", "number", "string"):
        return {"enum": list(validator.options)}
    return {}
