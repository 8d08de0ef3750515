"""The JSON schema of whole specifications, with the plugins of a registry.

Decision: a file may extend others, so the schema requires completeness only of the tables in arrays; `validate`
checks that a whole specification is complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from petra_graph.errors import PetraGraphError
from petra_graph.kinds.block import BLOCK
from petra_graph.kinds.correction import CORRECTION
from petra_graph.kinds.declaration import NoOptions
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_kind import PluginKind
from petra_graph.program.method import METHODS
from petra_graph.registry.registry import Registry
from petra_graph.spec.bounds import Schema
from petra_graph.spec.format_versions import FORMAT
from petra_graph.spec.value_types import class_schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def spec_schema(registry: Registry) -> Schema:
    """Return the schema; a broken plugin's name is allowed and its options are not described."""
    schema = class_schema(registry.spec_class, complete=False)
    tables = schema["properties"]
    for kind in registry.kinds:
        if kind.table:
            table = tables[kind.table]["items"] if kind.several else tables[kind.table]
            _name_plugins(table, "name", registry, kind, complete=kind.several)
    _name_plugins(tables["graph"]["properties"]["node"]["items"], "block", registry, BLOCK, complete=True)
    for correction in _usable(registry, CORRECTION, registry.names(CORRECTION)):
        described = tables["optimizer"]["properties"]["delay"]["description"]
        options = class_schema(correction.declaration.options, complete=False)
        tables["optimizer"]["properties"]["delay"] = {**options, "description": described}
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


def _name_plugins(table: Schema, key: str, registry: Registry, kind: PluginKind, *, complete: bool) -> None:
    """Add to a table's schema the plugins that `key` may name, with the options of each."""
    names = registry.names(kind)
    plain = table["properties"][key]
    plain.pop("type")
    # "dist:name" and "module:attribute" are allowed as well as the names.
    plain["anyOf"] = [{"enum": list(names)}, {"type": "string", "pattern": ":"}]
    conditions = [_condition(key, plugin, complete=complete) for plugin in _usable(registry, kind, names)]
    if conditions:
        table["allOf"] = conditions


def _usable(registry: Registry, kind: PluginKind, names: Iterable[str]) -> list[Plugin]:
    plugins = []
    for name in names:
        try:
            plugins.append(registry.resolve(kind, name))
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
