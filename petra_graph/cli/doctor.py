"""`petra-graph doctor`: the environment, its devices and its plugins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import click

from petra_graph.cli.options_and_output import echo, json_option, print_json, print_table
from petra_graph.units import plural

if TYPE_CHECKING:
    from petra_graph.doctor.finding import Finding


@click.command()
@json_option
@click.pass_context
def doctor(ctx: click.Context, *, as_json: bool) -> None:
    """Examine the environment: versions, extras, devices, and plugins that are broken, hidden or misspelt.

    Exit code 0: runs can start, though there may be warnings. 1: something that every run needs is broken. 4: a plugin is
    broken, or registered so that nothing finds it.
    """
    from petra_graph.doctor.device_findings import examine_devices
    from petra_graph.doctor.environment_findings import examine_environment
    from petra_graph.doctor.plugin_findings import examine_plugins
    from petra_graph.registry.registry import discover

    registry = discover()
    findings = [
        *examine_environment(),
        *examine_devices(unreadable=registry.unreadable),
        *examine_plugins(registry),
    ]
    code = exit_code(findings)
    if as_json:
        print_json({"exit_code": code, "findings": [attrs.asdict(one) for one in findings]})
    else:
        _print(findings)
    if code:
        ctx.exit(code)


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 1 where the environment or a device is broken, else 4 where a plugin is, else 0."""
    broken = {one.area for one in findings if one.status == "broken"}
    return 1 if broken - {"plugins"} else 4 if broken else 0


def _print(findings: Sequence[Finding]) -> None:
    for area in dict.fromkeys(one.area for one in findings):
        echo(area)
        print_table([(one.name, one.status, one.found) for one in findings if one.area == area], indent=2)
        echo()
    faults = [one for one in findings if one.status in {"warning", "broken"}]
    for one in faults:
        echo(f"{one.status}: {one.name}: {one.found}")
        if one.remedy:
            echo(f"    help: {one.remedy}")
    counts = {status: sum(one.status == status for one in findings) for status in ("broken", "warning")}
    said = [f"{counts['broken']} broken", plural(counts["warning"], "warning")]
    echo(", ".join(said) if faults else "nothing is wrong")
