"""`petra-graph plan`: stages, memory, staleness and speed of a spec, before anything runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from petra_graph.cli.options_and_output import (
    echo,
    import_torch,
    json_option,
    json_text,
    output_option,
    output_width,
    set_option,
)

_PIPED_WIDTH, _LEAST_WIDTH = 80, 60


@click.command()
@click.argument("spec", metavar="SPEC")
@set_option
@click.option(
    "--profile",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Times from `petra-graph profile`; the same as --set partition.profile=FILE.",
)
@click.option("--compare", is_flag=True, help="List all methods on this network and these devices.")
@click.option("--expand", is_flag=True, help="Write the spec with its architecture as nodes, and stop.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "html", "trace"]),
    default="text",
    show_default=True,
    help="html is one file to open in a browser; trace opens in https://ui.perfetto.dev.",
)
@click.option("--stages", is_flag=True, help="Show the table of stages even if it is long.")
@click.option("--verbose", is_flag=True, help="Show every table and every assumption.")
@output_option("Write to a file instead of stdout.")
@json_option
def plan(
    *,
    spec: str,
    overrides: tuple[str, ...],
    profile: str | None,
    compare: bool,
    expand: bool,
    form: str,
    stages: bool,
    verbose: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Say whether SPEC fits, how fast and how stale it is, and what to change ("-" reads the standard input).

    Nothing is allocated, and neither devices nor data files need to be present. Exit code 3: no cut keeps the memory
    limits; the message suggests changes that would help. SPEC can also be a plan saved as JSON, which is shown again.
    """
    if compare and expand:
        raise click.UsageError("--compare and --expand are different tables: give one of them.")
    if compare and form == "trace":
        raise click.UsageError("A trace is of one plan: leave out --format trace.")
    form = "json" if as_json else form
    if Path(spec).suffix == ".json":
        if compare or expand or overrides or profile is not None:
            raise click.UsageError("A saved plan is shown as it is: leave out the other options.")
        from petra_graph.planning.saved_plan import SavedPlan

        _write(_text(SavedPlan.read(spec).document, form, output, stages=stages, verbose=verbose), output)
        return
    import_torch()
    from petra_graph.planning.plan_spec import Planner

    if profile is not None:
        overrides = (*overrides, f"partition.profile={json_text(profile)}")
    if expand:
        from petra_graph.errors import printable
        from petra_graph.spec.load_spec import dump
        from petra_graph.training.resolved_spec import expand_architecture

        _write(printable(dump(expand_architecture(Planner(spec, overrides).checked))), output)
        return
    if compare:
        from petra_graph.planning.compare_plans import compare_methods

        document = compare_methods(Planner(spec, overrides))
    else:
        document = Planner(spec, overrides).document(with_timeline=form != "text")
    _write(_text(document, form, output, stages=stages, verbose=verbose), output)
    if compare and document["recommended"] is None:
        click.get_current_context().exit(3)


def _text(document: dict[str, Any], form: str, output: Path | None, *, stages: bool, verbose: bool) -> str:
    """Write a plan, or plans compared, in a form."""
    if form == "json":
        return json_text(document)
    if form == "html":
        from petra_graph.report.pages.plan_page import page

        return page(document)
    if form == "trace":
        from petra_graph.report.trace import trace

        return trace(document)
    from petra_graph.report.comparison import text_of

    width = _PIPED_WIDTH if output is not None else output_width(_PIPED_WIDTH)
    colour = output is None and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return text_of(document, width=max(_LEAST_WIDTH, width), colour=colour, stages=stages, verbose=verbose)


def _write(text: str, output: Path | None) -> None:
    """Write a text as it is: with colours on a terminal, and nothing else that controls one."""
    if output is None:
        click.echo(text.rstrip("\n"))
        return
    from petra_graph.record.run_directory import write_output

    write_output(output, text if text.endswith("\n") else f"{text}\n")
    echo(str(output))
