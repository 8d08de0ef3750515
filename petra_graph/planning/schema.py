"""The JSON schema of whole specifications, with the plugins of a registry.

Decision: a file may extend others, so the schema requires completeness only of the tables in arrays; `validate`
checks that a whole specification is complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from petra_graph.errors import PetraGraphError
from petra_graph.program.method import METHODS
from petra_graph.registry.contracts import BLOCKS, NoOptions
from petra_graph.registry.registry import LIST_GROUPS, TABLE_GROUPS, Plugin, Registry
from petra_graph.spec.bounds import Schema
from petra_graph.spec.formats import FORMAT
from petra_graph.spec.model import Spec
from petra_graph.spec.schema import class_schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def spec_schema(registry: Registry) -> Schema:
    """Return the schema; a broken plugin's name is allowed and its options are not described."""
    schema = class_schema(Spec, complete=False)
    tables = schema["properties"]
    for table, group in TABLE_GROUPS.items():
        _name_plugins(tables[table], "name", registry, group, complete=False)
    for table, group in LIST_GROUPS.items():
        _name_plugins(tables[table]["items"], "name", registry, group, complete=True)
    _name_plugins(tables["graph"]["properties"]["node"]["items"], "block", registry, BLOCKS, complete=True)
    tables["method"]["properties"]["name"]["enum"] = sorted(METHODS)
    names = {"type": "string", "minLength": 1}
    tables["extends"] = {
        "anyOf": [names, {"type": "array", "items": names}],
        "description": "files that this one extends, relative to it; later ones win, and this one wins over all",
    }
    tables["format"] = {
        "type": "integer",
        "const": FORMAT,
        "description": "version of this file's format; default: the current one",
    }
    tables["$schema"] = {"type": "string", "description": "for editors; ignored"}
    whole = [{"required": ["graph"]}, {"required": ["architecture"]}]
    return {
        "$schema": DIALECT,
        "title": "petra-graph specification",
        **schema,
        "not": {"required": ["graph", "architecture"]},
        "if": {"not": {"required": ["extends"]}},
        "then": {"required": ["data"], "anyOf": whole},
    }


def _name_plugins(table: Schema, key: str, registry: Registry, group: str, *, complete: bool) -> None:
    """Add to a table's schema the plugins that `key` may name, with the options of each."""
    names = registry.names(group)
    plain = table["properties"][key]
    plain.pop("type")
    # "dist:name" and "module:attribute" are allowed as well as the names.
    plain["anyOf"] = [{"enum": list(names)}, {"type": "string", "pattern": ":"}]
    conditions = [_condition(key, plugin, complete=complete) for plugin in _usable(registry, group, names)]
    if conditions:
        table["allOf"] = conditions


def _usable(registry: Registry, group: str, names: Iterable[str]) -> list[Plugin]:
    plugins = []
    for name in names:
        try:
            plugins.append(registry.resolve(group, name))
        except PetraGraphError:
            continue
    return plugins


def _condition(key: str, plugin: Plugin, *, complete: bool) -> Schema:
    options: dict[str, Any] = class_schema(plugin.declaration.options, complete=complete)
    if plugin.declaration.options is not NoOptions:
        options["description"] = plugin.declaration.summary
    then: Schema = {"properties": {"options": options}}
    if options.get("required"):
        then["required"] = ["options"]
    return {"if": {"properties": {key: {"const": plugin.name}}, "required": [key]}, "then": then}
