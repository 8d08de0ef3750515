"""A specification as TOML with every default written out, so that a change of a default does not change it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from petra_graph.spec.model import Spec


def dump(spec: Spec) -> str:
    """Return the specification as TOML; loading the text gives an equal specification."""
    import tomli_w

    return tomli_w.dumps(as_mapping(spec))


def as_mapping(value: Any) -> Any:
    """Return a value in TOML's types; keys without a value and empty options are left out."""
    if attrs.has(type(value)):
        items = {attribute.name: getattr(value, attribute.name) for attribute in attrs.fields(type(value))}
        return as_mapping({key: item for key, item in items.items() if item != {}})
    if isinstance(value, Mapping):
        return {key: as_mapping(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [as_mapping(item) for item in value]
    return value
