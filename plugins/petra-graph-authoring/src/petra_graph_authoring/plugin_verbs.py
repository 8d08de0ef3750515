"""`petra-graph list`, `show` and `schema`: the installed plugins, one plugin's options, the JSON schema of specs."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs
import click

from petra_graph.cli.options_and_output import echo, json_option, print_json, print_table
from petra_graph.errors import PluginError, shown, suggestion

if TYPE_CHECKING:  # the help imports this module, and not what the verbs need
    from petra_graph_conformance.options_in_words import Option

    from petra_graph.kinds.plugin import Plugin
    from petra_graph.kinds.plugin_kind import PluginKind
    from petra_graph.registry.registry import Registry
    from petra_graph_authoring.survey_of_plugins import PluginSummary


@click.command("list", short_help="List the installed plugins.")
@click.argument("group", required=False, metavar="[GROUP]")
@json_option
def list_plugins(group: str | None, as_json: bool) -> None:
    """List the installed plugins: name, distribution, kind and summary.

    GROUP is one of blocks, architectures, optimizers, lr_schedules, losses, datasets, loggers, callbacks and metrics;
    without it, all are listed.
    """
    from petra_graph.registry.registry import discover
    from petra_graph_authoring.survey_of_plugins import list_groups

    registry = discover()
    kinds = [_kind_called(registry, group)] if group else registry.kinds
    _tell_of_damage(registry)
    groups = [kind.short for kind in kinds]
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


def _kind_called(registry: Registry, group: str) -> PluginKind:
    """Return the kind of plugin with this short group.

    Raises:
        click.UsageError: there is no such group.
    """
    groups = [kind.short for kind in registry.kinds]
    if group not in groups:
        raise click.UsageError(f"No such group {group!r}: {suggestion(group, groups)}")
    return registry.kind(group)


def _tell_of_damage(registry: Registry) -> Registry:
    """Say on stderr whose entry points cannot be read, lie in groups that do not exist, or add kinds that are broken."""
    for problem in (*(misplaced for _, misplaced in registry.misplaced), *registry.broken_kinds):
        echo(str(problem), err=True)
    for distribution in registry.unreadable:
        echo(f"{distribution}: its entry points cannot be read\n    help: reinstall it, or remove it", err=True)
    return registry


def _summary_row(plugin: PluginSummary) -> tuple[str, ...]:
    if plugin.fault:
        return (plugin.name, plugin.distribution, "broken", plugin.fault)
    return (plugin.name, plugin.distribution, plugin.kind, plugin.summary)


@click.command(short_help="Show a plugin's options and a snippet to paste.")
@click.argument("plugin", metavar="GROUP/NAME")
@json_option
def show(plugin: str, as_json: bool) -> None:
    """Show a plugin: its summary, its options with types, defaults and units, and a snippet to paste.

    GROUP/NAME is a group of `petra-graph list` and a name in it, as in blocks/rev-basic.
    """
    from petra_graph_conformance.options_in_words import list_options, snippet

    from petra_graph.registry.registry import discover

    registry = _tell_of_damage(discover())
    group, slash, name = plugin.partition("/")
    if not slash or not name:
        groups = [kind.short for kind in registry.kinds if group in registry.names(kind)]
        example = " or ".join(f"{one}/{group}" for one in groups)
        raise click.UsageError(
            f"{plugin!r} is not GROUP/NAME: " + (f"try {example}" if example else "as in blocks/rev-basic")
        )
    found = registry.resolve(_kind_called(registry, group), name)
    if as_json:
        print_json(_record(group, found))
        return
    options = list_options(found)
    owner = ", ".join(part for part in (found.distribution, *_abilities(found)) if part)
    echo(f"{group}/{name} ({owner})\n" if owner else f"{group}/{name}\n")
    summary = found.declaration.summary
    echo(summary)
    about = _documentation(found).removeprefix(summary).lstrip()
    if about:
        echo(f"\n{about}")
    echo("\noptions" if options else "\nno options")
    print_table([_option_row(option) for option in options], indent=2)
    echo(f"\n{textwrap.indent(snippet(found), '    ')}")


def _abilities(plugin: Plugin) -> Sequence[str]:
    """Return what a plugin can do, by its declaration and by its code where that can be imported."""
    from petra_graph.kinds.plugin import knows_stage

    known = False
    with suppress(PluginError):
        known = knows_stage(plugin)
    return (*plugin.declaration.abilities, *["knows its stage's delay"] * known)


def _option_row(option: Option) -> tuple[str, ...]:
    default = "required" if option.required else "unset" if option.default is None else shown(option.default)
    return (option.name, option.type, option.limits, default, option.unit, option.help)


def _documentation(plugin: Plugin) -> str:
    from petra_graph.kinds.declaration import NoOptions

    options = plugin.declaration.options
    return "" if options is NoOptions else inspect.cleandoc(options.__doc__ or "")


def _record(group: str, plugin: Plugin) -> dict[str, Any]:
    from petra_graph_conformance.options_in_words import list_options, snippet

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
    return record | declaration.record()
