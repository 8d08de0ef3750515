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
@click.option(
    "--scale", metavar="COUNTS", help='List the throughput by number of devices, as in "1,2,4,8" or "1,2,4,...,1024".'
)
@click.option(
    "--vary",
    "varied",
    multiple=True,
    metavar="KEY=A,B,...",
    help="List the plans of all combinations of values, written as for `run --sweep`; a refusal stands in its row.",
)
@click.option("--expand", is_flag=True, help="Write the spec with its architecture as nodes, and stop.")
@click.option(
    "--format",
    "form",
    metavar="text|json|html|trace",
    show_default="text",
    help="Form of the output; those but text and json are written by other distributions, such as petra-graph-report.",
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
    scale: str | None,
    varied: tuple[str, ...],
    expand: bool,
    form: str | None,
    stages: bool,
    verbose: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Say whether SPEC fits, how fast and how stale it is, and what to change ("-" reads the standard input).

    Nothing is allocated, and neither devices nor data files need to be present. Exit code 3: no cut keeps the memory
    limits; the message suggests changes that would help.

    html is one file to open in a browser; trace opens in https://ui.perfetto.dev. SPEC can also be a plan saved as JSON,
    which is shown again.
    """
    options = (("--compare", compare), ("--scale", scale is not None), ("--vary", varied), ("--expand", expand))
    tables = [name for name, given in options if given]
    if len(tables) > 1:
        raise click.UsageError(f"{tables[0]} and {tables[1]} are different tables: give one of them.")
    parts = {"stages": stages, "verbose": verbose}
    form = _choose_form(form, tables, parts, as_json=as_json)
    if Path(spec).suffix == ".json":
        if tables or overrides or profile is not None:
            raise click.UsageError("A saved plan is shown as it is: leave out the other options.")
        from petra_graph.planning.place.saved_plan import SavedPlan

        _write(_plan_text(SavedPlan.read(spec).document, form, output, **parts), output)
        return
    import_torch()
    from petra_graph.planning.plan_spec import Planner

    if profile is not None:
        overrides = (*overrides, f"partition.profile={json_text(profile)}")
    if expand:
        from petra_graph.errors import printable
        from petra_graph.spec.load_spec import dump
        from petra_graph.training.record.resolved_spec import expand_architecture

        _write(printable(dump(expand_architecture(Planner(spec, overrides).checked))), output)
    elif tables:
        table = _plan_table(spec, overrides, varied, scale, compare=compare)
        whole = table.document
        text = table.text(verbose=verbose, **_screen(output)) if form == "text" else _format_document(whole, form)
        _write(text, output)
        if tables == ["--compare"] and whole["recommended"] is None:
            click.get_current_context().exit(3)
    else:
        document = Planner(spec, overrides).document(with_timeline=form != "text")
        _write(_plan_text(document, form, output, **parts), output)


def _plan_table(
    spec: str, overrides: tuple[str, ...], varied: tuple[str, ...], counts: str | None, *, compare: bool
) -> Any:
    """Return several plans as a value with a `document` and a `text`; other distributions make them."""
    from petra_graph.planning.plan_spec import Planner
    from petra_graph.registry.joints import joint

    if varied:
        return joint("vary", "--vary")(spec, overrides, varied)
    if compare:
        return joint("compare", "--compare")(Planner(spec, overrides))
    return joint("scale", "--scale")(Planner(spec, overrides), counts)


def _choose_form(given: str | None, tables: list[str], parts: dict[str, bool], *, as_json: bool) -> str:
    """Return the form of the output, which `--json` names as well as `--format` does."""
    if as_json and given not in {None, "json"}:
        raise click.UsageError(f"--json is --format json: leave out --format {given}, or --json.")
    form = "json" if as_json else given or "text"
    if form not in {"text", "json"}:
        from petra_graph.registry.joints import writer_of

        writer_of(form)
    if tables == ["--expand"] and form != "text":
        raise click.UsageError(f"--expand writes TOML (got {'--json' if as_json else f'--format {form}'}).")
    asked = [f"--{part}" for part, given in parts.items() if given]
    if asked and form != "text":
        raise click.UsageError(f"{asked[0]} is of the text (got --format {form}).")
    if asked and tables and (tables[0] == "--expand" or "--stages" in asked):
        raise click.UsageError(f"{asked[0]} is not for {tables[0]}: leave out one of them.")
    return form


def _plan_text(document: Any, form: str, output: Path | None, *, stages: bool, verbose: bool) -> str:
    if form == "text":
        from petra_graph.report.plan.plan_on_terminal import plan_text

        return plan_text(document, stages=stages, verbose=verbose, **_screen(output))
    return _format_document(document, form)


def _format_document(document: Any, form: str) -> str:
    if form == "json":
        return json_text(document)
    from petra_graph.registry.joints import writer_of

    return writer_of(form)(document)


def _screen(output: Path | None) -> dict[str, Any]:
    """Return the width and the colours of a text for the terminal or a file."""
    width = _PIPED_WIDTH if output is not None else output_width(_PIPED_WIDTH)
    colour = output is None and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return {"width": max(_LEAST_WIDTH, width), "colour": colour}


def _write(text: str, output: Path | None) -> None:
    """Write a text as it is: with colours on a terminal, and nothing else that controls one."""
    if output is None:
        click.echo(text.rstrip("\n"))
        return
    from petra_graph.record.run_directory import write_output

    write_output(output, text if text.endswith("\n") else f"{text}\n")
    echo(str(output))
