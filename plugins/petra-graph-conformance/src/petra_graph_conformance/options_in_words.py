"""A plugin as the command line shows it: its options, a snippet to paste."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

import attrs
from attrs import frozen

from petra_graph.errors import shown
from petra_graph.kinds.graph_pass import GRAPH_PASS
from petra_graph.kinds.plugin import Plugin, read_options
from petra_graph.spec.bounds import Bound
from petra_graph.spec.value_types import (
    as_mapping,
    describe,
    is_list,
    is_literal,
    is_mapping,
    is_union,
    item_types,
    members,
)


@frozen(kw_only=True)
class Option:
    """One option, in words."""

    name: str
    type: str
    """Its type in words, for example "an integer"."""
    limits: str
    """Its bounds, for example ">= 0, < 1"; "" where it has no bounds, or where the validator is not one of ours."""
    required: bool
    default: Any
    """The TOML value; None where the option is required or unset."""
    unit: str
    help: str


def list_options(plugin: Plugin) -> tuple[Option, ...]:
    """Return the options of a plugin, in the order of its class."""
    return tuple(
        Option(
            name=attribute.name,
            type=describe(attribute.type),
            limits=attribute.validator.brief if isinstance(attribute.validator, Bound) else "",
            required=attribute.default is attrs.NOTHING,
            default=_default(attribute),
            unit=attribute.metadata.get("unit", ""),
            help=attribute.metadata.get("help", ""),
        )
        for attribute in attrs.fields(plugin.declaration.options)
    )


def _default(attribute: attrs.Attribute[Any]) -> Any:
    default = attribute.default
    if default is attrs.NOTHING:
        return None
    factory = getattr(default, "factory", None)
    if factory is not None:
        default = None if getattr(default, "takes_self", False) else factory()
    return as_mapping(default)


PLACEHOLDER = "..."
"""In place of a text that only the user knows."""
LIKELY: dict[Any, tuple[Any, ...]] = {
    int: (64, 10, 8, 2, 1, 0),
    float: (0.1, 0.5, 1.0, 10.0, 0.0),
    str: (PLACEHOLDER,),
    bool: (True,),
}
"""Values to try, the most useful first."""
LIKELY_LENGTHS = (3, 1, 2, 4)


def snippet(plugin: Plugin) -> str:
    """Return TOML that names the plugin; options with defaults are comments in it."""
    lines = []
    for option in list_options(plugin):
        if option.required:
            lines.append(f"{option.name} = {shown(_example(plugin, option.name))}")
        elif option.default is not None:
            lines.append(f"# {option.name} = {shown(option.default)}")
    if plugin.kind is GRAPH_PASS:
        return "\n".join([f"[{plugin.name}]", *lines])
    if plugin.kind.table:
        table = plugin.kind.table
        head = [f"[[{table}]]" if plugin.kind.several else f"[{table}]", f"name = {shown(plugin.name)}"]
    else:
        table, plain = "graph.node", plugin.name.rpartition(":")[2]
        head = ["[[graph.node]]", f"name = {shown(plain)}", f"block = {shown(plugin.name)}"]
    return "\n".join([*head, *([f"[{table}.options]", *lines] if lines else [])])


def likely_options(plugin: Plugin, likely: Mapping[Any, tuple[Any, ...]] = LIKELY) -> dict[str, Any]:
    """Return likely values of the options that have no default."""
    return {option.name: _example(plugin, option.name, likely) for option in list_options(plugin) if option.required}


def small_options(plugin: Plugin) -> dict[str, Any]:
    """Return likely values that make a small network, where that is as good as a large one."""
    return likely_options(plugin, _SMALL)


_SMALL: Any = {**LIKELY, int: (4, *LIKELY[int])}


def _example(plugin: Plugin, name: str, likely: Mapping[Any, tuple[Any, ...]] = LIKELY) -> Any:
    """Return a value that the option's type and validator accept; the first candidate where they accept none."""
    candidates = list(_candidates(attrs.fields_dict(plugin.declaration.options)[name].type, likely))
    for value in candidates:
        _, problems = read_options(plugin, {name: value}, ())
        if not any(problem.path[:1] == (name,) for problem in problems):
            return value
    return candidates[0]


def _candidates(kind: Any, likely: Mapping[Any, tuple[Any, ...]]) -> Iterator[Any]:
    if is_union(kind):
        for member in members(kind):
            yield from _candidates(member, likely)
    elif is_literal(kind):
        yield from get_args(kind)
    elif is_list(kind):
        for length in LIKELY_LENGTHS:
            types = item_types(kind, length)
            if types is not None:
                yield [next(_candidates(item, likely)) for item in types]
    elif is_mapping(kind):
        yield {}
    elif isinstance(kind, type) and attrs.has(kind):
        required = [item for item in attrs.fields(kind) if item.default is attrs.NOTHING]
        yield {item.name: next(_candidates(item.type, likely)) for item in required}
    else:
        yield from likely.get(kind, (PLACEHOLDER,))
