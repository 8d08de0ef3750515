"""`petra-graph doctor`: the environment, its devices and its plugins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import click

from petra_graph.cli.options_and_output import echo, json_option, print_json, print_table
from petra_graph.units import plural

if TYPE_CHECKING:
    from petra_graph_authoring.doctor.environment_findings import Finding


@click.command(short_help="Examine the environment: versions, devices, plugins.")
@json_option
@click.pass_context
def doctor(ctx: click.Context, *, as_json: bool) -> None:
    """Examine the environment: versions, extras, devices, and plugins that are broken, misspelt or lack what they require.

    Exit code 0: runs can start, though there may be warnings. 1: something that every run needs is broken. 4: a plugin is
    broken, or registered so that nothing finds it.
    """
    from petra_graph.registry.registry import discover
    from petra_graph_authoring.doctor.device_findings import examine_devices
    from petra_graph_authoring.doctor.environment_findings import examine_environment
    from petra_graph_authoring.doctor.plugin_findings import examine_plugins

    registry = discover()
    findings: list[Finding] = []
    for area in (examine_environment(), examine_devices(registry.unreadable), examine_plugins(registry)):
        found = list(area)
        if found and not as_json:
            echo(found[0].area)
            print_table([(one.name, one.status, one.found) for one in found], indent=2)
            echo()
        findings += found
    code = exit_code(findings)
    if as_json:
        print_json({"exit_code": code, "findings": [attrs.asdict(one) for one in findings]})
    else:
        _print_faults(findings)
    if code:
        ctx.exit(code)


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 1 if the environment or a device is broken, else 4 if a plugin is, else 0."""
    broken = {one.area for one in findings if one.status == "broken"}
    return 1 if broken - {"plugins"} else 4 if broken else 0


def _print_faults(findings: Sequence[Finding]) -> None:
    faults = [one for one in findings if one.status in {"warning", "broken"}]
    for one in faults:
        echo(f"{one.status}: {one.name}: {one.found}")
        if one.remedy:
            echo(f"    help: {one.remedy}")
    broken = sum(one.status == "broken" for one in faults)
    echo(f"{broken} broken, {plural(len(faults) - broken, 'warning')}" if faults else "nothing is wrong")
