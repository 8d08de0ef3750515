"""`petra-graph list`: the installed plugins."""

from __future__ import annotations

import attrs
import click

from petra_graph.cli.parameters import full_group, json_option
from petra_graph.cli.printing import print_json, print_table
from petra_graph.registry.listing import PluginSummary, list_group
from petra_graph.registry.registry import SHORT_GROUPS, discover


@click.command("list")
@click.argument("group", required=False, metavar="[GROUP]")
@json_option
def list_plugins(group: str | None, as_json: bool) -> None:
    """List the installed plugins: name, distribution, kind and summary.

    GROUP is one of blocks, architectures, optimizers, lr_schedules, losses and datasets; without it, all are listed.
    """
    if group:
        full_group(group)
    registry = discover()
    groups = [group] if group else list(SHORT_GROUPS)
    listed = {name: list_group(registry, name) for name in groups}
    if as_json:
        print_json([attrs.asdict(plugin) for plugins in listed.values() for plugin in plugins])
        return
    for index, (name, plugins) in enumerate(listed.items()):
        if index:
            click.echo()
        if not group:
            click.echo(name)
        print_table([_row(plugin) for plugin in plugins], indent="" if group else "  ")


def _row(plugin: PluginSummary) -> tuple[str, ...]:
    if plugin.fault:
        return (plugin.name, plugin.distribution, "broken", plugin.fault)
    return (plugin.name, plugin.distribution, plugin.kind, plugin.summary)
