"""The page of one run: its state, curves, stages, memory, timeline, gradients' fidelity, environment."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from petra_graph.program.json_shape import Each, Later
from petra_graph.program.plan_document import Document, check_document
from petra_graph.record.run_directory import TIMELINE
from petra_graph.record.run_files import read_json
from petra_graph.record.run_history import read_history
from petra_graph.report.metric_text import chosen_on
from petra_graph.report.plan.plan_tables import title_lines
from petra_graph.report.plan.short_labels import schedule_label
from petra_graph.report.planned_and_measured import what_the_plan_said
from petra_graph.report.text_tables import Column, pair_columns, text_column
from petra_graph.spec.regular_file import read_regular
from petra_graph.units import NOTHING, PLAIN, duration, memory, one_line, percent, plural
from petra_graph_report.pages import render_page
from petra_graph_report.plan.plan_page import part_legend
from petra_graph_report.plan.timeline import full_timeline, stage_bars
from petra_graph_report.run.measured_stages import (
    process_columns,
    processes_of,
    stage_charts,
    stage_seconds,
    stage_tables,
)
from petra_graph_report.run.metric_values import EVALUATED, final_metrics, is_share, value_text
from petra_graph_report.run.recorded_run import RecordedRun
from petra_graph_report.run.run_curves import STEPS, by_epoch, probe_charts, run_charts

_LONGEST_TRACE = 6_000
"""Characters of a traceback's end that are shown."""


def run_page(run: RecordedRun) -> str:
    """Write a run as a page.

    Raises:
        SpecError: a file of the run is damaged.
    """
    plan = read_plan(run.directory)
    network, _ = title_lines(plan) if plan else ("", "")
    name = one_line(run.name)
    return render_page(
        "run.html",
        name=name,
        directory=str(run.directory),
        about=_about(run),
        network=network.removeprefix(f"{name}: "),
        state=list(_state(run)),
        failure=_failure(run),
        figures=list(_figures(run)),
        warnings=plan["warnings"] if plan else (),
        not_planned=list((run.summary.get("predicted") or {}).get("not planned", ())),
        charts=run_charts(run),
        epochs=_epochs(run),
        planned=plan is not None,
        ended=bool(run.summary) and not run.running,
        stage_charts=stage_charts(plan, run) if processes_of(run.summary) or plan else [],
        stage_tables=list(stage_tables(plan, run)),
        stages_measured=any(found.timed for found in stage_seconds(run)),
        parts=part_legend(plan) if plan else [],
        memory=memory(plan["totals"]["bytes"]["total"]) if plan else "",
        stage_bars=stage_bars(plan) if plan else None,
        processes=process_columns(plan, run.summary),
        on_cuda=any(process["cuda_peak_bytes"] for process in processes_of(run.summary)),
        measured_from=(run.summary.get("measured") or {}).get("from_micro_batch"),
        timeline=full_timeline(plan) if plan and plan["timeline"] else None,
        probe_charts=probe_charts(run),
        environment=_environment(run.directory),
        history=_history(run),
        changed=_changed(run.directory),
        resolved=read_regular(run.directory / "resolved.toml").decode(),
    )


def read_plan(directory: Path) -> Document | None:
    """Return the plan of a run, with the ticks of its timeline that were kept; None where it was not planned.

    Raises:
        SpecError: it is damaged.
    """
    path = directory / "plan.json"
    found = read_json(path, dict)
    if found is None:
        return None
    document = check_document(found, str(path))
    if blocks := read_json(directory / TIMELINE, list):
        document = check_document(document | {"timeline": blocks}, str(directory / TIMELINE))
    return document


def _about(run: RecordedRun) -> str:
    """Say in a line what was trained how: of a run without a plan as well."""
    spec = run.resolved
    method, data = spec["method"], spec["data"]
    update = f"accumulation {method['accumulation']}, micro-batch {data['batch']}"
    stages = plural(len(spec["partition"]["stages"]), "stage")
    schedule = schedule_label(method["schedule"])
    return f"A run on the data {data['name']}: {method['name']}, schedule {schedule}, {update}, {stages}."


def _state(run: RecordedRun) -> Iterator[str]:
    """Yield what a reader must know of a run that is not done."""
    resume = f"petra-graph run --resume {shlex.quote(str(run.directory))}"
    so_far = f"{run.epochs} of {plural(run.planned_epochs, 'epoch')} recorded"
    said = {
        "running": f"The run is under way: {so_far}. What a run measures of itself is written at its end.",
        "killed": f"The run ended without a summary, as its process was killed or the machine stopped: {so_far}.",
        "interrupted": f"The run was interrupted: {so_far}.",
    }
    if run.status in said:
        yield said[run.status]
    if run.status in {"killed", "interrupted", "failed"} and run.checkpoints:
        yield f"It continues from its latest checkpoint with: {resume}"


def _failure(run: RecordedRun) -> Mapping[str, Any] | None:
    if run.status != "failed":
        return None
    path, trace = run.directory / "failure.txt", ""
    if path.is_file():
        trace = path.read_text(encoding="utf-8", errors="replace")
    return {"errors": run.summary.get("error", []), "trace": trace[-_LONGEST_TRACE:]}


def _figures(run: RecordedRun) -> Iterator[tuple[str, str, str]]:
    summary, best, processes = run.summary, run.best, run.summary.get("processes") or 1
    yield ("status", run.status, f"{run.epochs} of {plural(run.planned_epochs, 'epoch')}")
    if best is not None:
        value, note = (
            value_text(best.metric, best.value, run.scales),
            f"after epoch {best.epoch}; {chosen_on(best.metric)}",
        )
        yield (f"best {best.metric}", value, note)
    tested, word = summary.get("test_weights"), "final" if run.status == "done" else "latest"
    metrics = final_metrics(name for name in run.metrics if name.startswith(EVALUATED))
    for metric in sorted(metrics, key=lambda name: not name.startswith("test/")):
        latest, note = run.metrics[metric][-1], f"after epoch {run.metrics[metric][-1].epoch}"
        if tested and metric.startswith("test/"):
            note = f"{tested['weights']} weights, of epoch {tested['epoch']}"
        if best is None or (metric, latest.epoch) != (best.metric, best.epoch):
            yield (f"{word} {metric}", value_text(metric, latest.value, run.scales), note)
    if rate := run.rate:
        yield ("samples a second", PLAIN.text(rate), what_the_plan_said(summary))
    if spent := summary.get("seconds"):
        note = "over all its starts" if summary.get("resumed_from") else f"of {duration(spent['total'])} in all"
        yield ("training", duration(spent["training"]), note)
    yield ("seed", str(run.seed), "1 process" if processes == 1 else f"{processes} processes")


def _epochs(run: RecordedRun) -> list[Column]:
    """Return the metrics epoch by epoch."""
    shown = [name for name in run.metrics if name.startswith(("train/", *EVALUATED)) and name not in STEPS]
    shown += [name for name in ("learning_rate", "samples_per_second") if name in run.metrics]
    values = {name: by_epoch(run.metrics[name]) for name in shown}
    epochs = sorted({epoch for of_epoch in values.values() for epoch in of_epoch})
    columns = [text_column("epoch", epochs)]
    for name in shown:
        cells = [values[name].get(epoch) for epoch in epochs]
        write = (lambda value: percent(value, 2)) if is_share(name, run.scales) else (lambda value: f"{value:,.4g}")
        head = name.replace("_per_", " a ").replace("_", " ").replace("/", "\n")
        columns.append(text_column(head, cells, write=write))
    return columns if epochs else []


def _environment(directory: Path) -> Mapping[str, Any]:
    found = read_json(directory / "env.json", dict, {"packages": Later(Each(str)), "command": Later([str])}) or {}
    own = found.keys() - {"command", "packages"}
    pairs = [(key.replace("_", " "), _text(value)) for key, value in found.items() if key in own and value]
    pairs += [(name, str(version)) for name, version in (found.get("packages") or {}).items()]
    command = [str(word) for word in found.get("command") or ()]
    return {"pairs": pair_columns("", pairs) if pairs else None, "command": shlex.join(command)}


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        value = sorted(set(map(str, value.values())))
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def _history(run: RecordedRun) -> list[Column]:
    """Return how the run began, where it was resumed, and what it left."""
    resumed, init = run.summary.get("resumed_from") or [], run.resolved.get("init", {})
    went_on = "never" if run.summary else "not known before the run's end"
    if resumed:
        went_on = f"{plural(len(resumed), 'time')}: " + "; ".join(map(_before, resumed))
    pairs = [
        ("began", f"{run.began:%Y-%m-%d %H:%M:%S} UTC"),
        ("weights at the start", str(init.get("weights") or f"random, from seed {run.seed}")),
        ("resumed", went_on),
        ("checkpoints", ", ".join(map(_before, sorted(run.checkpoints))) or "none"),
    ]
    counts = [(name, run.summary.get(name.replace("-", "_"))) for name in ("micro-batches", "updates")]
    return pair_columns("", [*pairs, *((name, f"{many:,}" if many else NOTHING) for name, many in counts)])


def _changed(directory: Path) -> list[Column]:
    """Return what the run was resumed with that was other than before, where that was."""
    pairs = [
        (f"{_before(one.at)}, after {plural(one.updates, 'update')}", text)
        for one in read_history(directory)
        for text in one.changed
    ]
    return pair_columns("", pairs) if pairs else []


def _before(micro_batch: int) -> str:
    return f"before micro-batch {micro_batch:,}"
