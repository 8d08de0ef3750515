"""`petra-graph schema`: the JSON schema that editors complete specs with."""

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
    help="Only plugins of this distribution; may be repeated. Default: all that are installed.",
)
def schema(distributions: Sequence[str]) -> None:
    """Print the JSON schema of specs, with the options of the plugins that are installed.

    Editors with a TOML language server use it where a spec's first line is `#:schema PATH`.
    """
    registry = discover()
    print_json(spec_schema(registry.only(distributions) if distributions else registry))
