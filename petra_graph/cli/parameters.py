"""Parameters that several verbs take."""

from __future__ import annotations

import click

set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set one value of the spec, as in --set method.name=backprop; may be repeated.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")
