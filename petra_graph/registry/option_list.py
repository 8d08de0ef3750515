"""A plugin's options, one by one, as a reader wants them."""

from __future__ import annotations

from typing import Any

import attrs
from attrs import frozen

from petra_graph.errors import shown
from petra_graph.registry.registry import Plugin
from petra_graph.spec.describe import describe
from petra_graph.spec.dump import as_mapping
from petra_graph.spec.schema import limits

WORDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


@frozen(kw_only=True)
class Option:
    """One option."""

    name: str
    type: str
    """In words: "an integer"."""
    limits: str
    """What its validator asks for, as far as it can be said: ">= 0, < 1"."""
    required: bool
    default: Any
    """As TOML has it; None where it is required or unset."""
    unit: str
    help: str


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
    said = limits(attribute)
    parts = [f"{sign} {said[key]}" for key, sign in WORDS.items() if key in said]
    if "enum" in said:
        parts.append(" | ".join(shown(value) for value in said["enum"]))
    if said.get("minItems", said.get("minLength", 0)):
        parts.append("not empty")
    return ", ".join(parts)
