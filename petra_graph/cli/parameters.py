"""Parameters of several verbs."""

from __future__ import annotations

import click

from petra_graph.errors import suggestion
from petra_graph.registry.registry import SHORT_GROUPS

set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set one value of the spec, as in --set method.name=backprop; may be repeated.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")


def full_group(group: str) -> str:
    """Return the entry-point group of a short name.

    Raises:
        click.UsageError: there is none.
    """
    if group not in SHORT_GROUPS:
        raise click.UsageError(f"No such group {group!r}: {suggestion(group, SHORT_GROUPS)}")
    return SHORT_GROUPS[group]
