"""`petra-graph list`: the names of the installed plugins, from entry points alone; of one plugin, its options and what it says of itself."""

from __future__ import annotations

import inspect
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

import attrs
import click

from petra_graph.cli.options_and_output import echo, json_option, print_json, print_table
from petra_graph.errors import SpecError, shown, suggestion
from petra_graph.plugins.discovery import VERBS
from petra_graph.plugins.registry import Registry, discover

if TYPE_CHECKING:
    from petra_graph.plugins.contract import Plugin
    from petra_graph.plugins.discovery import Entry


@click.command("list")
@click.argument("what", required=False, metavar="[KIND|PLUGIN]")
@json_option
def list_plugins(what: str | None, as_json: bool) -> None:
    """List the installed plugins by kind, each with its distribution; what cannot be used with the reason.

    KIND is one of these, as in blocks. Of a PLUGIN, as in blocks/rev-basic or rev-basic, its options and its documentation are
    shown; its code is imported.
    """
    registry = discover()
    kinds = {kind.short: kind for kind in registry.kinds}
    if what is not None and what not in kinds:
        record = _described(_resolved(registry, what))
        print_json(record) if as_json else _print_plugin(record)
        return
    rows = [
        {"kind": kind.short, "name": name, "distribution": entry.distribution, "fault": _fault(entry)}
        for short, kind in kinds.items()
        for name in dict.fromkeys(registry.names(kind))
        if what in {None, short} and (entry := _entry(registry, kind.group, name)) is not None
    ]
    if as_json:
        print_json(rows)
    for kind in dict.fromkeys(row["kind"] for row in rows) if not as_json else ():
        echo(kind)
        print_table([(row["name"], row["distribution"], row["fault"]) for row in rows if row["kind"] == kind], indent=2)
    known = {VERBS, *(kind.group for kind in registry.kinds)}
    for entry in registry.entries:
        if entry.group not in known:
            echo(
                f"{entry.distribution} registers {shown(entry.name)} in the group {entry.group}, which does not exist",
                err=True,
            )
    for distribution in registry.unreadable:
        echo(f"{distribution}: its entry points cannot be read", err=True)


list = list_plugins  # noqa: A001  the verb's name


def _entry(registry: Registry, group: str, name: str) -> Entry | None:
    owner, _, plain = name.rpartition(":")
    entries = (one for one in registry.entries if (one.group, one.name) == (group, plain))
    return next((one for one in entries if owner in {"", one.distribution}), None)


def _fault(entry: Entry) -> str:
    """Return why a plugin cannot be used, as far as that is known without importing it."""
    top = entry.target.partition(":")[0].partition(".")[0]
    return "" if PathFinder.find_spec(top) is not None else f"broken: there is no module {top!r} ({entry.target})"


def _resolved(registry: Registry, name: str) -> Plugin:
    short, slash, plain = name.partition("/")
    having = [
        kind
        for kind in registry.kinds
        if (slash and kind.short == short) or (not slash and name in registry.names(kind))
    ]
    if len(having) > 1:
        raise SpecError(f"{shown(name)} is {' or '.join(shown(f'{kind.short}/{name}') for kind in having)}")
    if not having:
        every = [
            *(kind.short for kind in registry.kinds),
            *(name for kind in registry.kinds for name in registry.names(kind)),
        ]
        raise SpecError(f"there is no kind and no plugin {shown(name)}", suggestion(name, every))
    return registry.resolve(having[0], plain if slash else name)


def _described(plugin: Plugin) -> dict[str, Any]:
    options = [
        {
            "name": one.name,
            "type": getattr(one.type, "__name__", None) or str(one.type),
            "default": "required" if one.default is attrs.NOTHING else _default(one.default),
            "help": one.metadata.get("help", ""),
        }
        for one in attrs.fields(plugin.options)
    ]
    about = inspect.cleandoc(plugin.code.__doc__ or "")
    return {
        "kind": plugin.kind.short,
        "name": plugin.name,
        "distribution": plugin.distribution,
        "summary": plugin.summary,
        "documentation": about.removeprefix(plugin.summary).strip(),
        "abilities": [
            f"{name} = {shown(value)}" for name in _STATED if (value := getattr(plugin.code, name, None)) is not None
        ],
        "options": options,
    }


_STATED = ("kind", "streams", "better", "changes")
"""Attributes of code that say what it can do."""


def _default(value: Any) -> str:
    made = value.factory() if hasattr(value, "factory") and not value.takes_self else value
    return "unset" if made is None else shown(attrs.asdict(made) if attrs.has(type(made)) else made)


def _print_plugin(record: dict[str, Any]) -> None:
    about = ", ".join([record["distribution"] or "in a file", *record["abilities"]])
    echo(f"{record['kind']}/{record['name']} ({about})\n\n{record['summary']}")
    if record["documentation"]:
        echo(f"\n{record['documentation']}")
    echo("\noptions" if record["options"] else "\nno options")
    print_table([(one["name"], one["type"], one["default"], one["help"]) for one in record["options"]], indent=2)
