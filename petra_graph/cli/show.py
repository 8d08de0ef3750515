"""`petra-graph show`: one plugin's options, and a snippet to paste."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

import attrs
import click

from petra_graph.cli.parameters import full_group, json_option
from petra_graph.cli.printing import print_json, print_table
from petra_graph.errors import shown
from petra_graph.registry.contracts import BlockDeclaration, NoOptions
from petra_graph.registry.listing import Option, list_options, snippet
from petra_graph.registry.registry import Plugin, discover


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
    found = discover().resolve(full_group(group), name)
    if as_json:
        print_json(_record(group, found))
        return
    options = list_options(found)
    owner = ", ".join(part for part in (found.distribution, *_abilities(found)) if part)
    click.echo(f"{group}/{name} ({owner})\n")
    click.echo(found.declaration.summary)
    about = _documentation(found)
    if about and about != found.declaration.summary:
        click.echo(f"\n{about}")
    click.echo("\noptions" if options else "\nno options")
    print_table([_row(option) for option in options], indent="  ")
    click.echo(f"\n{textwrap.indent(snippet(found), '    ')}")


def _row(option: Option) -> tuple[str, ...]:
    default = "required" if option.required else "unset" if option.default is None else shown(option.default)
    return (option.name, option.type, option.limits, default, option.unit, option.help)


def _abilities(plugin: Plugin) -> list[str]:
    declaration = plugin.declaration
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
    return record
