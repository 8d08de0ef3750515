"""`petra-graph schema`: the JSON schema with which editors complete specs."""

from __future__ import annotations

from collections.abc import Sequence

import click

from petra_graph.cli.printing import print_json
from petra_graph.planning.schema import spec_schema
from petra_graph.registry.registry import discover


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
    registry = discover()
    print_json(spec_schema(registry.only(distributions) if distributions else registry))
