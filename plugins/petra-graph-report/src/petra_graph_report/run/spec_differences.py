"""What differs between runs: the keys of their resolved specifications with other values, and these as words."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from petra_graph.errors import shown

ABSENT = "-"
"""In the place of a value that a specification does not have."""
_OF_METHOD = ("method.schedule", "method.reversible", "method.buffered", "method.backward", "method.flush")
"""Keys whose values a method brings with it."""


def find_differences(resolved: Sequence[Mapping[str, Any]], but: Collection[str]) -> dict[str, list[str]]:
    """Return the keys in which specifications differ, each with its values as TOML.

    Args:
        resolved: the specifications, with every default.
        but: keys that do not count. Neither do those that follow from another name: of a method, or the options of a plugin that another one lacks.
    """
    specs = [dict(flatten(each)) for each in resolved]
    keys = dict.fromkeys(key for spec in specs for key in spec if key not in but)
    rows = {key: [shown(spec[key]) if key in spec else ABSENT for spec in specs] for key in keys}
    return _leave_out_derived({key: row for key, row in rows.items() if len(set(row)) > 1})


def _leave_out_derived(rows: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the rows without keys that follow from another name, unless they tell apart what the others do not."""
    tables = tuple(key.removesuffix("name") for key in rows if key.endswith(".name"))
    derived = [
        key
        for key, row in rows.items()
        if not key.endswith(".name")
        and key.startswith(tables)
        and (ABSENT in row or (key in _OF_METHOD and "method.name" in rows))
    ]
    kept = {key: row for key, row in rows.items() if key not in derived}
    for key in derived:
        if count_different({**kept, key: rows[key]}) > count_different(kept):
            kept[key] = rows[key]
    return {key: row for key, row in rows.items() if key in kept}


def count_different(rows: Mapping[str, Sequence[str]]) -> int:
    """Return how many specifications these keys tell apart."""
    return len(set(zip(*rows.values(), strict=True))) or 1


def flatten(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a table's values with their dotted keys; nodes of the graph by their names."""
    for key, value in table.items():
        name = f"{path}{key}"
        if isinstance(value, Mapping):
            yield from flatten(value, f"{name}.")
        elif name == "graph.node":
            for node in value:
                yield from flatten(node, f"{name}.{node.get('name')}.")
        else:
            yield name, value


def in_words(rows: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what differs, as `find_differences` has it, for each specification: "lr=0.1, batch=64"."""
    last = [short_key(key) for key in rows]
    heads = [short if last.count(short) == 1 else key for key, short in zip(rows, last, strict=True)]
    return [
        ", ".join(f"{head}={value.strip(chr(34))}" for head, value in zip(heads, values, strict=True))
        for values in zip(*rows.values(), strict=True)
    ]


def short_key(key: str) -> str:
    """Return the last part of a key that says something: "method" of method.name, "layer.0" of method.keep.layer.0."""
    parts = key.split(".")
    if parts[-1].isdecimal():
        return ".".join(parts[-2:])
    return parts[-2] if parts[-1] == "name" and len(parts) > 1 else parts[-1]
