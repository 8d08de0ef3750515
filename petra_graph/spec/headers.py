"""The tables of a specification by the keys that they have, for a key that was written in another table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import get_args

import attrs

from petra_graph.spec.model import Spec
from petra_graph.spec.value_types import is_list, members


@cache
def headers_by_key() -> Mapping[str, tuple[str, ...]]:
    """Return the header of every table that has a key, by the key: "[run]", "[[graph.node]]", "the top of the file"."""
    found: dict[str, tuple[str, ...]] = {}
    for header, key in [
        ("the top of the file", "extends"),
        ("the top of the file", "format"),
        *_keys(Spec, "", "the top of the file"),
    ]:
        found[key] = (*found.get(key, ()), header)
    return found


def _keys(cls: type, dotted: str, header: str) -> Iterator[tuple[str, str]]:
    """Yield the keys of a table, and of the tables within it, each after the header of its table."""
    attrs.resolve_types(cls)
    for attribute in attrs.fields(cls):
        yield header, attribute.name
        name = f"{dotted}.{attribute.name}" if dotted else attribute.name
        for kind in members(attribute.type):
            if attrs.has(kind):
                yield from _keys(kind, name, f"[{name}]")
            elif is_list(kind) and attrs.has(get_args(kind)[0]):
                yield from _keys(get_args(kind)[0], name, f"[[{name}]]")
