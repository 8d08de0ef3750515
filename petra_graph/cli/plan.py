"""`petra-graph plan`: stages, memory, staleness and speed of a spec, before anything runs."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from petra_graph.cli.options_and_output import echo, json_option, json_text, output_option, set_option
from petra_graph.cli.torch_import import import_torch

_FORMATS = ("text", "json", "mermaid", "dot", "html", "trace", "svg")
_PIPED_WIDTH = 80


@click.command()
@click.argument("spec", metavar="SPEC")
@set_option
@click.option(
    "--profile",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Times from `petra-graph profile`; the same as --set partition.profile=FILE.",
)
@click.option("--overlap", is_flag=True, help="Assume that devices run forwards and backwards at once, on two streams.")
@click.option(
    "--compare",
    is_flag=True,
    help="List all methods on this network and these devices; beside --vary partition.memory=..., as points of its picture.",
)
@click.option(
    "--scale", metavar="COUNTS", help='List the throughput by number of devices, as in "1,2,4,8" or "1,2,4,...,1024".'
)
@click.option(
    "--diff",
    metavar="OTHER",
    help="List what changes from OTHER to SPEC; OTHER is a plan saved as JSON, a run, or a spec (--set does not change it).",
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
    "--format", "form", type=click.Choice(_FORMATS), default=None, show_default="text", help="Form of the output."
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
    overlap: bool,
    compare: bool,
    scale: str | None,
    diff: str | None,
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

    html is one file to open in a browser; trace opens in https://ui.perfetto.dev; mermaid and dot draw the graph; svg is the
    picture of --vary. SPEC can also be a plan saved as JSON, which is shown again.
    """
    options = (
        ("--compare", compare),
        ("--scale", scale),
        ("--diff", diff),
        ("--vary", varied),
        ("--expand", expand),
    )
    tables = [name for name, given in options if given and not (name == "--compare" and varied)]
    if compare and varied and not varied[0].startswith("partition.memory="):
        raise click.UsageError("--compare beside --vary puts methods at their memory: vary partition.memory first.")
    if len(tables) > 1:
        raise click.UsageError(f"{tables[0]} and {tables[1]} are different tables: give one of them.")
    parts = {"stages": stages, "verbose": verbose}
    form = _form(form, tables, parts, as_json=as_json)
    if Path(spec).suffix == ".json":
        if tables or overrides or profile is not None or overlap:
            raise click.UsageError(
                "A saved plan is shown as it is; --diff compares it: petra-graph plan SPEC --diff SAVED.json."
            )
        from petra_graph.planning.plan_spec import saved_or_planned

        _write(_shown(saved_or_planned(spec), form, output, **parts), output)
        return
    import_torch()
    from petra_graph.planning.plan_spec import Planner

    if profile is not None:
        overrides = (*overrides, f"partition.profile={json_text(profile)}")
    if varied:
        text = _varied(spec, overrides, varied, form, output, overlap=overlap, methods=compare, verbose=verbose)
        _write(text, output)
        return
    planner = Planner(spec, overrides, overlap=overlap)
    if expand:
        from petra_graph.errors import printable
        from petra_graph.spec.load_spec import dump_to_change
        from petra_graph.training.record.resolved_spec import expanded

        text = printable(dump_to_change(expanded(planner.checked)))
    elif compare or scale is not None:
        from petra_graph.planning import compare_plans as comparisons
        from petra_graph.report.plan.plan_comparison import comparison_of

        counts = None if scale is None else comparisons.device_counts(scale)
        found = comparisons.compare(planner) if counts is None else comparisons.scale(planner, counts)
        text = json_text(found) if form == "json" else _compared(comparison_of(found), form, output, verbose=verbose)
    elif diff is not None:
        text = _diff(planner, diff, form, output, overlap=overlap)
    else:
        document = planner.plan().document(with_timeline=form in ("json", "html", "trace"))
        text = _shown(document, form, output, **parts)
    _write(text, output)


def _form(given: str | None, tables: list[str], parts: dict[str, bool], *, as_json: bool) -> str:
    """Return the form of the output, which `--json` names as well as `--format` does."""
    if as_json and given not in {None, "json"}:
        raise click.UsageError(f"--json is --format json: leave out --format {given}, or --json.")
    form = "json" if as_json else given or "text"
    if tables == ["--expand"] and form != "text":
        raise click.UsageError(f"--expand writes TOML (got {'--json' if as_json else f'--format {form}'}).")
    if form == "svg" and tables != ["--vary"]:
        raise click.UsageError("--format svg is the picture of --vary.")
    if tables and form not in {"text", "json", "html", "svg"}:
        forms = "html, svg or json" if tables == ["--vary"] else "html or json"
        raise click.UsageError(f"{tables[0]} is shown as text, {forms} (got --format {form}).")
    asked = [f"--{part}" for part, given in parts.items() if given]
    if asked and form != "text":
        raise click.UsageError(f"{asked[0]} is of the text (got --format {form}).")
    if asked and tables and (tables[0] in {"--diff", "--expand"} or "--stages" in asked):
        raise click.UsageError(f"{asked[0]} is not for {tables[0]}: leave out one of them.")
    return form


def _shown(document: Any, form: str, output: Path | None, *, stages: bool, verbose: bool) -> str:
    if form == "text":
        from petra_graph.report.plan.plan_on_terminal import plan_text

        return plan_text(document, stages=stages, verbose=verbose, **_screen(output))
    if form == "json":
        return json_text(document)
    from petra_graph.report.plan.graph_languages import dot, mermaid
    from petra_graph.report.plan.plan_page import plan_page
    from petra_graph.report.plan.trace_events import trace

    views = {"mermaid": mermaid, "dot": dot, "html": plan_page, "trace": trace}
    return views[form](document)


def _diff(planner: Any, other: str, form: str, output: Path | None, *, overlap: bool) -> str:
    from petra_graph.planning.plan_spec import saved_or_planned
    from petra_graph.report.plan.plan_comparison import changes, differences

    document = planner.plan().document(with_timeline=False)
    against = saved_or_planned(other, overlap=overlap)
    if document["name"] == against["name"]:
        document, against = document | {"name": "this plan"}, {**against, "name": other}
    if form == "json":
        import attrs

        return json_text([attrs.asdict(change) for change in changes(document, against)])
    return _compared(differences(document, against), form, output, verbose=False)


def _varied(
    spec: str,
    overrides: tuple[str, ...],
    varied: tuple[str, ...],
    form: str,
    output: Path | None,
    *,
    overlap: bool,
    methods: bool,
    verbose: bool,
) -> str:
    from petra_graph.registry.joints import joint
    from petra_graph.report.notebook_views import varied_figure
    from petra_graph.report.plan.plan_comparison import comparison_of

    found = joint("vary", "--vary")(spec, overrides, varied, overlap=overlap, methods=methods)
    if form in {"json", "svg"}:
        return json_text(found) if form == "json" else varied_figure(found).svg
    return _compared(comparison_of(found), form, output, verbose=verbose)


def _compared(comparison: Any, form: str, output: Path | None, *, verbose: bool) -> str:
    from petra_graph.report.plan.plan_comparison import comparison_page, comparison_text

    if form == "html":
        return comparison_page(comparison)
    return comparison_text(comparison, verbose=verbose, **_screen(output))


def _screen(output: Path | None) -> dict[str, Any]:
    """Return the width and the colours of a text for the terminal or a file."""
    on_screen = output is None and sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if on_screen else _PIPED_WIDTH
    return {"width": max(60, width), "colour": on_screen and "NO_COLOR" not in os.environ}


def _write(text: str, output: Path | None) -> None:
    """Write a text as it is: with colours on a terminal, and nothing else that controls one."""
    if output is None:
        click.echo(text.rstrip("\n"))
        return
    from petra_graph.record.run_directory import write_output

    write_output(output, text if text.endswith("\n") else f"{text}\n")
    echo(str(output))
