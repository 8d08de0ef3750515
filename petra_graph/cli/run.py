"""`petra-graph run`: train what a spec describes."""

from __future__ import annotations

import json
import sys

import click


@click.command()
@click.argument("spec", metavar="SPEC")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Override a key, such as run.epochs=3.")
@click.option("--dry-run", is_flag=True, help="Check everything, data included, and stop before training.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on stdout.")
def run(spec: str, overrides: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Train what SPEC describes ("-" reads it from standard input).

    Progress goes to stderr, the summary to stdout, everything else into a new run directory.
    """
    if dry_run:
        from petra_graph.session.prepare import outline, prepare

        facts = outline(prepare(spec, overrides))
        click.echo(json.dumps(facts) if as_json else "\n".join(f"{key}: {value}" for key, value in facts.items()))
        return
    from petra_graph.report.progress import progress
    from petra_graph.report.summary import summary_lines
    from petra_graph.session.run import run as train

    ended = train(spec, overrides, progress())
    click.echo(json.dumps(ended.summary) if as_json else "\n".join(summary_lines(ended.summary)))
    sys.stdout.flush()
    if ended.interrupted is not None:
        raise ended.interrupted
