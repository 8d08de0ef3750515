"""Strict structuring of TOML values: a value must have exactly its type, and every mismatch is reported at once.

Decision: no value is converted. "3" is no integer, true is no integer, 3.0 is no integer; only an integer may stand for
a number. A silent conversion would hide a mistake of the author until later.

Decision: a field's validator runs when its value is read, not when the whole table is built, so that one pass reports
values out of range together with unknown keys.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NoReturn, get_args, get_origin

import attrs
from cattrs import Converter
from cattrs.errors import IterableValidationError, IterableValidationNote
from cattrs.gen import make_dict_structure_fn, override

from petra_graph.spec.describe import describe, is_list, is_literal, is_mapping, is_union, item_types, members
from petra_graph.spec.schema import limits


class Mismatch(Exception):
    """A value does not have its type."""

    def __init__(self, expected: str, value: Any, *, allowed: tuple[Any, ...] = ()) -> None:
        super().__init__(expected)
        self.expected = expected
        self.value = value
        self.allowed = allowed


class OutOfRange(Exception):
    """A value has its type, but its field's validator refuses it."""

    def __init__(self, reason: str, value: Any) -> None:
        super().__init__(reason)
        self.reason = reason
        self.value = value


@functools.cache
def converter() -> Converter:
    """Return the converter that reads specifications and plugins' options."""
    strict = Converter(forbid_extra_keys=True, detailed_validation=True)
    # The converter tries the hook registered last first.
    strict.register_structure_hook_factory(attrs.has, lambda cls: _read_class(cls, strict))
    strict.register_structure_hook_func(is_mapping, lambda value, kind: _read_mapping(value, kind, strict))
    strict.register_structure_hook_func(is_list, lambda value, kind: _read_list(value, kind, strict))
    strict.register_structure_hook_func(is_literal, _read_literal)
    strict.register_structure_hook_func(is_union, lambda value, kind: _read_union(value, kind, strict))
    for kind in (bool, int, str):
        strict.register_structure_hook(kind, _read_exactly)
    strict.register_structure_hook(float, _read_float)
    return strict


def check_readable(cls: type) -> None:
    """Refuse an attrs class with a field that cannot be read from TOML.

    Raises:
        TypeError: a field's type cannot be.
        NameError: a field's annotation names what its module does not define.
    """
    attrs.resolve_types(cls)
    for attribute in attrs.fields(cls):
        describe(attribute.type)
        if isinstance(attribute.type, type) and attrs.has(attribute.type):
            check_readable(attribute.type)


def _read_exactly(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise Mismatch(describe(kind), value)
    return value


def _read_float(value: Any, kind: type) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Mismatch(describe(kind), value)
    if not math.isfinite(value):
        raise Mismatch("a finite number", value)
    return float(value)


def _read_literal(value: Any, kind: Any) -> Any:
    allowed = get_args(kind)
    for item in allowed:
        if type(item) is type(value) and item == value:
            return item
    raise Mismatch(describe(kind), value, allowed=allowed)


def _read_list(value: Any, kind: Any, strict: Converter) -> Any:
    types = item_types(kind, len(value)) if isinstance(value, list | tuple) else None
    if types is None:
        raise Mismatch(describe(kind), value)
    items = _read_items(zip(range(len(value)), value, types, strict=True), kind, strict).values()
    return list(items) if get_origin(kind) is list else tuple(items)


def _read_mapping(value: Any, kind: Any, strict: Converter) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise Mismatch(describe(kind), value)
    item_type = get_args(kind)[1]
    return _read_items(((key, item, item_type) for key, item in value.items()), kind, strict)


def _read_items(entries: Iterable[tuple[Any, Any, Any]], kind: Any, strict: Converter) -> dict[Any, Any]:
    """Return the read values by key or index, from entries (key or index, value, type)."""
    items: dict[Any, Any] = {}
    errors: list[Exception] = []
    for key, item, item_type in entries:
        try:
            items[key] = strict.structure(item, item_type)
        except Exception as error:  # noqa: BLE001  gathered, and reported together
            error.add_note(IterableValidationNote(f"at {key}", key, item_type))
            errors.append(error)
    if errors:
        raise IterableValidationError(f"not {describe(kind)}", errors, kind)
    return items


def _read_union(value: Any, kind: Any, strict: Converter) -> Any:
    errors = []
    for member in members(kind):
        try:
            return strict.structure(value, member)
        except Exception as error:  # noqa: BLE001  the next member may take it
            errors.append(error)
    # An error from inside the value says more: the outer shape was right.
    inside = [error for error in errors if not isinstance(error, Mismatch)]
    if inside:
        raise inside[0]
    if len(errors) == 1:
        raise errors[0]
    allowed = tuple(item for error in errors if isinstance(error, Mismatch) for item in error.allowed)
    raise Mismatch(describe(kind), value, allowed=allowed)


def _read_class(cls: type, strict: Converter) -> Callable[[Any, Any], Any]:
    attrs.resolve_types(cls)
    hooks = {
        attribute.name: override(struct_hook=_read_field(attribute, strict))
        for attribute in attrs.fields(cls)
        if attribute.init
    }
    build: Callable[[Mapping[str, Any], Any], Any] = make_dict_structure_fn(
        cls,
        strict,
        _cattrs_forbid_extra_keys=True,
        _cattrs_detailed_validation=True,
        **hooks,  # type: ignore[arg-type]  # the keys are fields, not the function's own parameters
    )

    def read(value: Any, kind: Any) -> Any:
        if not isinstance(value, Mapping):
            raise Mismatch("a table", value)
        return build(value, kind)

    return read


def _read_field(attribute: attrs.Attribute[Any], strict: Converter) -> Callable[[Any, Any], Any]:
    kind: Any = attribute.type

    def read(value: Any, _kind: Any) -> Any:
        result = strict.structure(value, kind)
        if attribute.validator is not None:
            try:
                attribute.validator(_UNBUILT, attribute, result)
            except _NeedsInstanceError:
                pass  # The validator compares fields, and runs when the table is built.
            except Exception as error:
                allowed = tuple(limits(attribute).get("enum", ()))
                if allowed and result not in allowed:
                    raise Mismatch(describe(Literal[allowed]), result, allowed=allowed) from error
                raise OutOfRange(str(error.args[0]) if error.args else repr(error), result) from error
        return result

    return read


class _NeedsInstanceError(Exception):
    pass


class _Unbuilt:
    """The table, for validators, while its fields are still being read."""

    def __getattr__(self, name: str) -> NoReturn:
        raise _NeedsInstanceError(name)


_UNBUILT = _Unbuilt()
