"""What is done with specifications: `petra-graph run`, `plan`, `validate` and `profile`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import attrs
import click

from petra_graph.cli.options_and_output import Answer, Json, Option, Sets, import_torch, print_problems, verb
from petra_graph.errors import Interrupted, NoFeasiblePlan, PetraGraphError, RunFailed, Where, shown
from petra_graph.units import plural


@verb()
def run(
    spec: Annotated[str | None, "[SPEC]"] = None,
    *,
    overrides: Sets = (),
    resume: Annotated[str | None, Option("Without SPEC: continue a run, or the `latest` one.", "RUN")] = None,
    processes: Annotated[int, Option("Share the stages among N processes.", "N", least=1)] = 1,
    max_restarts: Annotated[int, Option("If a process dies, go on from the latest checkpoint.", "N", least=0)] = 0,
    fast_dev_run: Annotated[bool, Option("Train two micro-batches and evaluate on two, to find mistakes.")] = False,
    plan: Annotated[str | None, Option("Take the stages of a saved plan.", "FILE")] = None,
    dry_run: Annotated[bool, Option("Check everything, data included, and stop before training.")] = False,
    as_json: Json = False,
) -> Answer | None:
    """Train SPEC ("-" reads the standard input). Progress goes to stderr, the summary to stdout, everything else into a new run directory.

    Ctrl-C stops between two micro-batches and writes a checkpoint, from which --resume continues as if nothing had happened (exit code 130).
    """
    if (spec is None) == (resume is None):
        raise click.UsageError("Give SPEC, or --resume RUN: a resumed run keeps its specification.")
    if max_restarts and processes == 1:
        raise click.UsageError("--max-restarts needs --processes: this process cannot outlive itself.")
    if fast_dev_run:  # those of --set come after these, and win
        overrides = ("run.epochs=1", "run.micro_batches=2", "run.evaluation_batches=2", *overrides)
    # torch's profiler would report on itself; read when torch is imported.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    if processes > 1 or "RANK" in os.environ:
        # When a process ends, torch would log each lost connection with its C++ stack; it reads this when imported.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from petra_graph.record.run_directory import directory_to_resume

    directory = None if resume is None else directory_to_resume(resume, overrides)
    given = str(spec if directory is None else directory / "resolved.toml")
    import_torch()
    from petra_graph.planning.place_network import SavedPlan
    from petra_graph.report.progress import Progress, summary_lines
    from petra_graph.training import run as training
    from petra_graph.training.prepare import prepare
    from petra_graph.training.run_record import RunRecord, start_warnings

    if processes > 1 and not dry_run:
        options = [*(f"--set={text}" for text in overrides), *([] if plan is None else [f"--plan={plan}"])]
        words = [str(spec) if directory is None else f"--resume={directory}", *options, *["--json"] * as_json]
        training.run_on_processes(words, processes, max_restarts)
        return None
    saved = None if plan is None else SavedPlan.read(plan)
    if dry_run:
        prepared = prepare(given, overrides, processes, saved=saved)
        figures, notes = RunRecord(Path(), prepared).outline(), prepared.placement.notes
        warnings = list(start_warnings(prepared))
        lines = [*(f"{key}: {one}" for key, one in figures.items()), *notes, *(f"warning: {text}" for text in warnings)]
        return Answer({**figures, "notes": notes, "warnings": warnings}, "\n".join(lines))
    try:
        result = training.run(given, overrides, Progress(), directory, saved)
    except RunFailed as error:
        print_problems(error.problems)
        return Answer(error.summary, "", error.exit_code)
    # None where another process records.
    text = "" if result.summary is None else "\n".join(summary_lines(result.summary))
    return Answer(result.summary, text, 0 if result.interrupted is None else Interrupted.exit_code)


@verb()
def plan(
    spec: Annotated[str, "SPEC"],
    *,
    overrides: Sets = (),
    profile: Annotated[str | None, Option("Times from `petra-graph profile`.", "FILE")] = None,
    compare: Annotated[bool, Option("List all methods on this network and these devices.")] = False,
    expand: Annotated[bool, Option("Write the spec with its architecture as nodes, and stop.")] = False,
    form: Annotated[Literal["text", "html", "trace", "json"], Option("What to write.", names=("--format",))] = "text",
    verbose: Annotated[bool, Option("Show every table and what was assumed.")] = False,
    output: Annotated[Path | None, Option("Write to a file instead of stdout.")] = None,
    as_json: Json = False,
) -> Answer:
    """Say whether SPEC fits, how fast and how stale it is. "-" reads the standard input.

    Neither devices nor data files need to be present. The plan says what to change. Exit code 3: no cut keeps the memory limits. SPEC can also be a plan saved as JSON.
    The form html is one file to open in a browser, SPEC.plan.html; trace opens in https://ui.perfetto.dev.
    """
    saved, form = Path(spec).suffix == ".json", "json" if as_json else form
    if compare and (expand or form == "trace"):
        raise click.UsageError("--compare is a table of several plans: give --expand or --format trace without it.")
    if saved and (compare or expand or overrides or profile is not None):
        raise click.UsageError("A saved plan is shown as it is: leave out the other options.")
    import_torch()
    from petra_graph.planning.compare_plans import advised, compare_methods
    from petra_graph.planning.place_network import SavedPlan
    from petra_graph.planning.plan_spec import Planner
    from petra_graph.record.run_directory import write_output
    from petra_graph.report.pages.plan_page import page
    from petra_graph.report.plan_text import plan_text
    from petra_graph.report.trace import trace
    from petra_graph.spec.load_spec import dump

    found: Any = None  # a plan, or plans compared
    if saved:
        found = SavedPlan.read(spec).plan
    else:
        planner = Planner(spec, (*overrides, *(() if profile is None else (f"partition.profile={shown(profile)}",))))
        if not expand:
            found = compare_methods(planner) if compare else advised(planner, with_timeline=form != "text")
    if expand:
        from petra_graph.training.identity import with_nodes

        text = dump(with_nodes(planner.checked.spec, planner.checked.graph)).rstrip("\n")
    elif form == "json":
        text = json.dumps(found.as_json(), indent=2)
    elif form == "html":
        text = page(found)
        # Nobody reads a page on a terminal.
        output = output or Path(f"{'spec' if spec == '-' else Path(spec).stem}.plan.html")
    elif form == "trace":
        text = trace(found)
    else:
        text = plan_text(found, verbose=verbose)
    if output is not None:
        write_output(output, f"{text}\n")
    none_fits = compare and found.recommended is None
    return Answer(None, text if output is None else str(output), NoFeasiblePlan.exit_code if none_fits else 0)


@verb()
def validate(specs: Annotated[tuple[str, ...], "SPEC..."], *, overrides: Sets = ()) -> Answer:
    """Check specs: keys, types, plugins, options, graph, shapes. "-" reads the standard input."""
    import_torch()
    from petra_graph.planning.check_spec import check_spec
    from petra_graph.planning.network import check_network
    from petra_graph.plugins.registry import discover

    registry, failed, records, lines = discover(), list[PetraGraphError](), list[dict[str, Any]](), list[str]()
    for spec in specs:
        try:
            network = check_network(check_spec(spec, overrides, registry=registry))
        except PetraGraphError as error:
            failed.append(error)
            problems = [attrs.asdict(one) for one in error.problems]
            problems = [one | (one.pop("where") or {"file": None, "line": None}) for one in problems]
            records.append({"spec": spec, "ok": False, "problems": problems})
        else:
            counts = {"node": len(network.graph.nodes), "parameter": network.count_parameters()[0]}
            records.append({"spec": spec, "ok": True, **{f"{what}s": n for what, n in counts.items()}, "problems": []})
            lines.append(f"{Where(file=spec)}: ok ({', '.join(plural(n, what) for what, n in counts.items())})")
    print_problems([problem for error in failed for problem in error.problems])
    # The exit code blames plugins only where every spec is right.
    return Answer(records, "\n".join(lines), min((error.exit_code for error in failed), default=0))


@verb()
def profile(
    spec: Annotated[str, "SPEC"],
    *,
    overrides: Sets = (),
    output: Annotated[Path | None, Option("The profile. Default: NAME.profile.json, after the spec's name.")] = None,
    micro_batches: Annotated[int, Option("How many micro-batches to time.", least=1)] = 10,
) -> Answer:
    """Time SPEC's nodes on its devices, for `plan --profile`. A few micro-batches are enough."""
    import_torch()
    from petra_graph.planning.network import write_profile
    from petra_graph.profiling import profile as measure

    times = measure(spec, overrides, micro_batches)
    path = output or Path(f"{times.name}.profile.json")
    write_profile(path, times)
    return Answer(attrs.asdict(times), f"{times.device}; micro-batches of {times.micro_batch}; {path}")
