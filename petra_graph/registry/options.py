"""A plugin's own options, as its options class declares them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import frozen

from petra_graph.errors import Path, Problem, shown
from petra_graph.registry.registry import Plugin
from petra_graph.spec.describe import describe
from petra_graph.spec.dump import as_mapping
from petra_graph.spec.schema import COMPARISONS, limits
from petra_graph.spec.structure import structure_as


@frozen(kw_only=True)
class Option:
    """One option, in words."""

    name: str
    type: str
    """For example "an integer"."""
    limits: str
    """What the validator demands, for example ">= 0, < 1"; "" where there are none."""
    required: bool
    default: Any
    """The TOML value; None where the option is required or unset."""
    unit: str
    help: str


def read_options(plugin: Plugin, mapping: Mapping[str, Any], path: Path) -> tuple[Any | None, tuple[Problem, ...]]:
    """Read a plugin's `options` table with the plugin's own class.

    Args:
        plugin: the plugin that the options belong to.
        mapping: the table.
        path: the table's path in the specification.

    Returns:
        an instance of the declaration's options class and no problem, or None and the problems.
    """
    return structure_as(plugin.declaration.options, mapping, path, names={path: f"the options of {plugin}"})


def list_options(plugin: Plugin) -> tuple[Option, ...]:
    """Return the options of a plugin, in the order of its class."""
    return tuple(
        Option(
            name=attribute.name,
            type=describe(attribute.type),
            limits=_limits(attribute),
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


def _limits(attribute: attrs.Attribute[Any]) -> str:
    schema = limits(attribute)
    parts = [f"{comparison} {schema[key]}" for comparison, key in COMPARISONS.items() if key in schema]
    if "enum" in schema:
        parts.append(" | ".join(shown(value) for value in schema["enum"]))
    if schema.get("minItems", schema.get("minLength", 0)):
        parts.append("not empty")
    return ", ".join(parts)
