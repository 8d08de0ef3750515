"""`petra-graph list`, `show` and `schema`: the installed plugins, one plugin's options, the JSON schema of specs."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Sequence
from typing import Any

import attrs
import click

from petra_graph.cli.common import echo, full_group, json_option, print_json, print_table
from petra_graph.errors import shown
from petra_graph.registry.contracts import BlockDeclaration, CallbackDeclaration, NoOptions
from petra_graph.registry.listing import Option, list_options, snippet
from petra_graph.registry.registry import SHORT_GROUPS, Plugin, Registry, discover
from petra_graph.registry.survey import PluginSummary, list_groups


@click.command("list")
@click.argument("group", required=False, metavar="[GROUP]")
@json_option
def list_plugins(group: str | None, as_json: bool) -> None:
    """List the installed plugins: name, distribution, kind and summary.

    GROUP is one of blocks, architectures, optimizers, lr_schedules, losses, datasets, loggers and callbacks; without it,
    all are listed.
    """
    if group:
        full_group(group)
    registry = _discover()
    groups = [group] if group else list(SHORT_GROUPS)
    plugins = list_groups(registry, groups)
    if as_json:
        print_json([attrs.asdict(plugin) for plugin in plugins])
        return
    for index, name in enumerate(groups):
        if index:
            echo()
        if not group:
            echo(name)
        rows = [_summary_row(plugin) for plugin in plugins if plugin.group == name]
        print_table(rows, indent=0 if group else 2)


def _discover() -> Registry:
    """Return the installed plugins; say on stderr whose entry points cannot be read, or lie in groups that do not exist."""
    registry = discover()
    for misplaced in registry.misplaced:
        echo(str(misplaced.problem), err=True)
    for distribution in registry.unreadable:
        echo(f"{distribution}: its entry points cannot be read\n    help: reinstall it, or remove it", err=True)
    return registry


def _summary_row(plugin: PluginSummary) -> tuple[str, ...]:
    if plugin.fault:
        return (plugin.name, plugin.distribution, "broken", plugin.fault)
    return (plugin.name, plugin.distribution, plugin.kind, plugin.summary)


@click.command()
@click.argument("plugin", metavar="GROUP/NAME")
@json_option
def show(plugin: str, as_json: bool) -> None:
    """Show a plugin: its summary, its options with types, defaults and units, and a snippet to paste.

    GROUP/NAME is a group of `petra-graph list` and a name in it, as in blocks/rev-basic.
    """
    group, slash, name = plugin.partition("/")
    if not slash or not name:
        raise click.UsageError(f"{plugin!r} is not GROUP/NAME, as in blocks/rev-basic")
    found = _discover().resolve(full_group(group), name)
    if as_json:
        print_json(_record(group, found))
        return
    options = list_options(found)
    owner = ", ".join(part for part in (found.distribution, *_abilities(found)) if part)
    echo(f"{group}/{name} ({owner})\n" if owner else f"{group}/{name}\n")
    echo(found.declaration.summary)
    about = _documentation(found)
    if about and about != found.declaration.summary:
        echo(f"\n{about}")
    echo("\noptions" if options else "\nno options")
    print_table([_option_row(option) for option in options], indent=2)
    echo(f"\n{textwrap.indent(snippet(found), '    ')}")


def _option_row(option: Option) -> tuple[str, ...]:
    default = "required" if option.required else "unset" if option.default is None else shown(option.default)
    return (option.name, option.type, option.limits, default, option.unit, option.help)


def _abilities(plugin: Plugin) -> list[str]:
    declaration = plugin.declaration
    if isinstance(declaration, CallbackDeclaration):
        return [declaration.effect]
    if not isinstance(declaration, BlockDeclaration):
        return []
    streams = "any number of" if declaration.streams is None else str(declaration.streams)
    return [declaration.kind, f"reads {streams} stream{'s' * (declaration.streams != 1)}"]


def _documentation(plugin: Plugin) -> str:
    options = plugin.declaration.options
    return "" if options is NoOptions else inspect.cleandoc(options.__doc__ or "")


def _record(group: str, plugin: Plugin) -> dict[str, Any]:
    declaration = plugin.declaration
    record: dict[str, Any] = {
        "group": group,
        "name": plugin.name,
        "distribution": plugin.distribution,
        "summary": declaration.summary,
        "documentation": _documentation(plugin),
        "options": [attrs.asdict(option) for option in list_options(plugin)],
        "snippet": snippet(plugin),
    }
    if isinstance(declaration, BlockDeclaration):
        record |= {"kind": declaration.kind, "streams": declaration.streams}
    if isinstance(declaration, CallbackDeclaration):
        record["changes"] = declaration.changes
    return record


@click.command()
@click.option(
    "--distribution",
    "distributions",
    multiple=True,
    metavar="NAME",
    help="Only plugins of this distribution; may be repeated. Default: all installed plugins.",
)
def schema(distributions: Sequence[str]) -> None:
    """Print the JSON schema of specs, with the options of the installed plugins.

    Editors with a TOML language server use it where a spec's first line is `#:schema PATH`.
    """
    from petra_graph.planning.schema import spec_schema

    registry = _discover()
    print_json(spec_schema(registry.only(distributions) if distributions else registry))
