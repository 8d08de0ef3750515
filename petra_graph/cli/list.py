"""`petra-graph list`: the names of the installed plugins, from entry points alone; of one plugin, its options and what it says of itself."""

from __future__ import annotations

import inspect
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

import attrs
import click

from petra_graph.cli.options_and_output import echo, json_option, print_json, print_table
from petra_graph.errors import SpecError, shown, suggestion
from petra_graph.plugins.registry import VERBS, Registry, discover
from petra_graph.spec.strict_values import as_mapping, describe

if TYPE_CHECKING:
    from petra_graph.plugins.contract import Plugin
    from petra_graph.plugins.registry import Entry


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
        record = _described(named_plugin(registry, what))
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


def named_plugin(registry: Registry, name: str) -> Plugin:
    """Return the plugin of a name on the command line: "rev-basic", "blocks/rev-basic", or "blocks/module:attribute".

    Raises:
        SpecError: no plugin has this name, or plugins of several kinds have it.
        PluginError: its code cannot be imported, or breaks the contract of its kind.
    """
    short, slash, plain = name.rpartition("/")
    kinds = [kind for kind in registry.kinds if (kind.short == short if slash else name in registry.names(kind))]
    if len(kinds) > 1:
        raise SpecError(f"{shown(name)} is {' or '.join(shown(f'{kind.short}/{name}') for kind in kinds)}")
    if not kinds:
        every = [name for kind in registry.kinds for name in (kind.short, *registry.names(kind))]
        raise SpecError(f"there is no kind and no plugin {shown(name)}", suggestion(name, every))
    return registry.resolve(kinds[0], plain)


def _default(value: Any) -> str:
    if value is attrs.NOTHING:
        return "required"
    return "unset" if value is None else shown(as_mapping(value))


def _described(plugin: Plugin) -> dict[str, Any]:
    return {
        "kind": plugin.kind.short,
        "name": plugin.name,
        "distribution": plugin.distribution,
        "documentation": inspect.cleandoc(plugin.code.__doc__ or ""),
        "options": [
            {
                "name": one.name,
                "type": describe(one.type),
                "default": _default(one.default),
                "help": one.metadata.get("help", ""),
            }
            for one in attrs.fields(plugin.options)
        ],
    }


def _print_plugin(record: dict[str, Any]) -> None:
    echo(f"{record['kind']}/{record['name']} ({record['distribution'] or 'in a file'})\n\n{record['documentation']}")
    echo("\noptions" if record["options"] else "\nno options")
    print_table([(one["name"], one["type"], one["default"], one["help"]) for one in record["options"]], indent=2)
