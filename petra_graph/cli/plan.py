"""`petra-graph plan`: stages, memory, staleness and speed of a spec, before anything runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from petra_graph.cli.options_and_output import (
    import_torch,
    json_option,
    json_text,
    output_option,
    output_width,
    set_option,
    write_result,
)
from petra_graph.errors import NoFeasiblePlan

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
    type=click.Choice(["text", "html", "trace"]),
    default="text",
    show_default=True,
    help="html is one file to open in a browser; trace opens in https://ui.perfetto.dev.",
)
@click.option("--stages", is_flag=True, help="Show the table of stages even if it is long.")
@click.option("--verbose", is_flag=True, help="Show every table and every assumption.")
@output_option("Write to a file instead of stdout.")
@json_option
@click.pass_context
def plan(
    ctx: click.Context,
    /,
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
    code = 0
    if Path(spec).suffix == ".json":
        if compare or expand or overrides or profile is not None:
            raise click.UsageError("A saved plan is shown as it is: leave out the other options.")
        from petra_graph.planning.saved_plan import SavedPlan

        document = SavedPlan.read(spec).document
    else:
        import_torch()
        from petra_graph.planning.plan_spec import Planner

        planner = Planner(spec, (*overrides, *[f"partition.profile={json_text(profile)}"] * (profile is not None)))
        if expand:
            from petra_graph.spec.load_spec import dump
            from petra_graph.training.resolved_spec import expand_architecture

            write_result(dump(expand_architecture(planner.checked)), output)
            return
        if compare:
            from petra_graph.planning.compare_plans import compare_methods

            document = compare_methods(planner)
            code = 0 if document["recommended"] is not None else NoFeasiblePlan.exit_code
        else:
            document = planner.document(with_timeline=form != "text")
    write_result(_text(document, form, output, stages=stages, verbose=verbose), output, coloured=form == "text")
    ctx.exit(code)


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
    from petra_graph.report.plan_text import plan_text

    width = _PIPED_WIDTH if output is not None else output_width(_PIPED_WIDTH)
    colour = output is None and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return plan_text(document, width=max(_LEAST_WIDTH, width), colour=colour, stages=stages, verbose=verbose)
