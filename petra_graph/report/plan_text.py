"""A plan on a terminal: six answers, the tables that are short or asked for, and last, where a reader's eye is, the warnings.

The answers are whether it fits, how full it is, how fast, how stale, what to change, and how sure all that is. Plans of one network side by
side, as `plan --compare` and variations of a spec give them, are a table. A value that does not apply, or that belongs to a plan that does
not exist, is None and a dash here; the row's note says why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve
from rich.columns import Columns
from rich.console import RenderableType
from rich.text import Text

from petra_graph import units
from petra_graph.compiler.plan import Document, Plan, PlannedDevice
from petra_graph.report.plan_tables import (
    device_columns,
    graph_lines,
    notes_on_stages,
    ranges_label,
    schedule_label,
    stage_columns,
    title_lines,
    totals,
)
from petra_graph.report.tables import (
    Column,
    heading,
    is_short,
    listed_lines,
    name_column,
    pair_columns,
    render,
    table,
    tables,
    value_column,
    worded,
)
from petra_graph.units import PLAIN, duration, factor, listed, memory, noun, number, one_line, percent, plural, rate

ASSUMPTIONS_PAGE = "petra_graph/compiler/README.md#assumptions"
_ACTION = re.compile(r"[:;] ((?:set |[a-z_]+\.[a-z_]+ = ).*?)(?:\. [A-Z].*)?$")
"""What a warning says to do first: keys to set."""
_TIMES = "times are "
"""The beginning of the assumption that says where a plan's times are from."""
_NAMED = 3
"""Rows that an answer names."""

Answers = list[tuple[str, str]]
"""Questions, in a word each, and what answers them, the most important first."""


def plan_text(
    plan: Plan | Document, *, width: int, colour: bool = False, stages: bool = False, verbose: bool = False
) -> str:
    """Write a plan, or plans side by side, for a terminal of a width of 60 columns or more; `colour` writes ANSI escapes.

    Of a plan, the tables of stages and devices are written where they are short: with `stages` that of stages with all its columns, with
    `verbose` everything.
    """
    if isinstance(plan, Plan):
        parts = _sections(plan, width, stages or verbose, verbose)
    else:
        parts = _parts(plan, width, verbose)
    return render(parts, width=width, colour=colour)


def _sections(plan: Plan, width: int, stages: bool, verbose: bool) -> Iterator[RenderableType]:
    yield Text(one_line(plan.name), "bold")
    yield worded(answers(plan))
    yield Text("\n" + "\n".join(title_lines(plan)))
    if verbose:
        yield heading("graph")
        yield from listed_lines(graph_lines(plan.nodes))
    columns = stage_columns(plan, max(16, width // 4), brief=not stages)
    if stages or is_short(columns, width):
        yield heading("stages")
        yield from tables(columns, width)
        yield from listed_lines(notes_on_stages(plan))
    columns = device_columns(plan, max(16, width // 5))
    if verbose or is_short(columns, width):
        yield heading("devices")
        yield from tables(columns, width)
    if verbose:
        made = [table(pair_columns(title, pairs)) for title, pairs in totals(plan)]
        yield Text()
        yield Columns(made, padding=(1, 4))
    yield from assumption_lines([*plan.notes, *plan.assumptions], verbose=verbose)
    if plan.warnings:
        yield heading("warnings")
        yield from listed_lines(plan.warnings, "!", "yellow")


def assumption_lines(said: Sequence[str], *, verbose: bool) -> Iterator[RenderableType]:
    """Yield the assumptions of a plan, or a line that says where they are."""
    if said:
        yield heading("assumptions", "" if verbose else f"{len(said)}: see --verbose, and {ASSUMPTIONS_PAGE}")
        yield from listed_lines(said, "-") if verbose else ()


def answers(plan: Plan) -> Answers:
    """Return the six answers."""
    return [
        ("fits", _fit(plan)),
        ("fullest", _fullest(plan)),
        ("speed", _speed(plan)),
        ("staleness", _staleness(plan)),
        ("change", _change(plan)),
        ("how sure", _certainty(plan)),
    ]


def _fullest_device(plan: Plan) -> PlannedDevice:
    """Return the device whose memory is used most: by its share where the memory of every device is known, else by its bytes."""
    known = all(device.room for device in plan.devices)
    return max(plan.devices, key=lambda device: device.bytes.total / ((device.room or 1) if known else 1))


def _fit(plan: Plan) -> str:
    unknown = [device for device in plan.devices if not device.room]
    short = {place: -left for place, device in enumerate(plan.devices) if (left := device.spare_bytes or 0) < 0}
    if short:
        most = max(short, key=short.__getitem__)
        others = f"; {plural(len(short) - 1, 'other device')} too" if len(short) > 1 else ""
        device = plan.devices[most]
        return f"no; {_name(device)} needs {memory(short[most])} more than its {memory(device.room or 0)}{others}"
    if unknown:
        kinds = listed(dict.fromkeys(one_line(device.type) for device in unknown))
        return f"unknown; the memory of {kinds} is not stated: set partition.memory"
    fullest = _fullest_device(plan)
    whole = fullest.room or 1
    left = whole - fullest.bytes.total
    return f"yes; {memory(left)} ({percent(left / whole, 0)}) to spare on the fullest device"


def _fullest(plan: Plan) -> str:
    device = _fullest_device(plan)
    of = "" if device.room is None else f" of {memory(device.room)}"
    stages = f"{noun(len(device.stages), 'stage')} {ranges_label(device.stages)}"
    return f"{memory(device.bytes.total)}{of}; {_name(device)} with {stages}"


def _name(device: PlannedDevice) -> str:
    name, kind = one_line(device.name), one_line(device.type)
    return name if name == kind else f"{name} ({kind})"


def _speed(plan: Plan) -> str:
    timing, run, sure = plan.timing, plan.run, plan.certainty
    about = "" if timing.exact else "about "
    baseline = ""
    if timing.speedup is not None:
        baseline = f"; {about}{factor(timing.speedup)} {one_line(timing.speedup_over or '')}"
    planned, low, high = timing.samples_per_second, sure.samples_per_second_low, sure.samples_per_second_high
    if _profiled(plan):
        low = high = planned
    text = (about + rate(high) if low == high else f"{PLAIN.text(low)} to {rate(high)}") + baseline
    if run.seconds is not None:
        times = dict.fromkeys(duration(run.seconds * planned / speed) for speed in (high, low))
        text += f"; {' to '.join(times)} for {plural(run.epochs, 'epoch')}"
    return text


def _source_of_times(plan: Plan) -> str:
    lines = map(one_line, plan.assumptions)
    clauses = (re.split("[,:] ", text.removeprefix(_TIMES))[0] for text in lines if text.startswith(_TIMES))
    return next(clauses, "unknown")


def _profiled(plan: Plan) -> bool:
    """Whether the times are a profile's; a data sheet gives a range alone."""
    return _source_of_times(plan).startswith("measured")


def _staleness(plan: Plan) -> str:
    worst = max(plan.stages, key=lambda stage: stage.staleness)
    if not worst.staleness:
        return "none; no gradient is late"
    known = f"; known to {' and '.join(plan.delay_aware)}" if plan.delay_aware else ""
    return f"{plural(worst.staleness, 'update')}; the gradients of stage {worst.index}, the latest{known}"


def _change(plan: Plan) -> str:
    """Return the keys that the first warning which names any says to set, or else the first warning."""
    warnings = [one_line(text) for text in plan.warnings]
    if not warnings:
        looked = plan.other_uses
        others = f"none of {plural(looked, 'other use')} of these devices is better; " if looked else ""
        return f"nothing; {others}plan --compare looks at other methods"
    found = [(place, action[1]) for place, text in enumerate(warnings, start=1) if (action := _ACTION.search(text))]
    place, text = found[0] if found else (1, warnings[0])
    return f"{text}; {f'warning {place} of {len(warnings)}' if len(warnings) > 1 else 'the warning'} says why"


def _certainty(plan: Plan) -> str:
    parts = [_source_of_times(plan)]
    planned, sure = plan.timing.samples_per_second, plan.certainty
    low, high = (planned / speed for speed in (sure.samples_per_second_high, sure.samples_per_second_low))
    quiet = " on a quiet machine" if _profiled(plan) else ""
    parts.append(f"such plans gave {low:.1f} to {high:.1f} times the speed that runs had{quiet}")
    return "; ".join(parts)


def _parts(document: Document, width: int, verbose: bool) -> Iterator[RenderableType]:
    yield Text(comparison_title(document), "bold")
    yield worded(comparison_answers(document))
    yield Text()
    yield from tables(comparison_columns(document, brief=not verbose), width)
    if notes := comparison_notes(document):
        yield heading("notes")
        yield from listed_lines(notes)
    yield from assumption_lines(document["assumptions"], verbose=verbose)


def comparison_title(document: Document) -> str:
    what = "methods" if _of_methods(document) else "plans"
    return f"{one_line(document['name'])}: {what} compared"


def _of_methods(document: Document) -> bool:
    return "recommended" in document


def row_names(document: Document) -> list[str]:
    """Name the rows: of methods, and where devices are used otherwise than in the first row, how."""
    rows = document["rows"]
    return [_method_name(row, rows[0]) for row in rows] if _of_methods(document) else [row["name"] for row in rows]


def _method_name(row: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    keep = "" if row["keep"] is None else "keep auto" if row["keep"] == "auto" else "keep as listed"
    schedule = "" if row["schedule"] == "sequential" else schedule_label(row["schedule"])
    used, uses = row["devices"], ""
    if row["replicas"] != first["replicas"] and row["replicas"] > 1:
        uses = f"{row['replicas']} replicas" + (f" of {used} devices" if used > 1 else "")
    elif used != first["devices"]:
        uses = f"on {used} {noun(used, 'device')}"
    elif 'partition.stages = "auto"' in row["set"]:
        uses = "stages auto"
    return ", ".join(filter(None, (row["method"], schedule, keep, uses)))


def comparison_columns(document: Document, *, brief: bool = False) -> list[Column]:
    """Return the figures of each plan; the best of those that fit is marked. Memory is also given as a share of `pipedream`'s."""
    rows, methods = document["rows"], _of_methods(document)
    values = {key: [row.get(key) for row in rows] for key in dict.fromkeys(key for row in rows for key in row)}
    fits = values["fits"]
    rates = value_column("samples\na second", values["samples_per_second"], units.PLAIN.text)
    columns = [
        name_column("method, schedule" if methods else "plan", row_names(document)),
        _mark_best(value_column("fullest\ndevice", values["memory_peak"], memory), values["memory_peak"], fits),
        *([value_column("fits", fits, lambda fit: "yes" if fit else "no")] if False in fits else []),
        _mark_best(rates, [value and -value for value in values["samples_per_second"]], fits),
        value_column("speed-up", values["speedup"], factor),
        value_column("stale\nupdates", values["staleness"], number),
    ]
    if not brief:
        columns.append(value_column("memory\ntotal", values["memory_total"], memory))
    if methods and not brief:
        columns += [
            value_column("un-\nbeaten", ["yes" if row["unbeaten"] else "" for row in rows]),
            value_column("memory, of\npipedream's", values["saving"], _rest),
            value_column("paper's\ncount", values["paper_total"], units.DECIMAL.text),
            value_column("of\npipedream's", values["paper_saving"], _rest),
            value_column("sent", values["channel_bytes"], memory),
            value_column("work", values["flops"], units.flops),
        ]
    return columns


def _mark_best(column: Column, values: Sequence[float | None], fits: Sequence[bool | None]) -> Column:
    """Return a column of numbers whose least one that fits is marked, unless all look the same."""
    cells = dict(zip(values, column.cells, strict=True))
    usable = [value for value, fit in zip(values, fits, strict=True) if value is not None and fit is not False]
    best = cells[min(usable)] if len({cells[value] for value in usable}) > 1 else None
    styles = [
        "bold green" if cell == best and fit is not False else "" for cell, fit in zip(column.cells, fits, strict=True)
    ]
    return evolve(column, styles=styles)


def _rest(saving: float) -> str:
    return percent(1 - saving)


def comparison_answers(document: Document) -> Answers:
    """Return which plan is the fastest, which the smallest, and of methods how many fit and which to choose."""
    rows, names = document["rows"], row_names(document)
    fits = [row["fits"] for row in rows]
    usable = [(name, row) for name, row in zip(names, rows, strict=True) if row["fits"] is not False]
    found: Answers = []
    if any(fit is not None for fit in fits):
        more = "" if all(fits) else "; the notes say why the others do not"
        found.append(("fits", f"{fits.count(True)} of {len(fits)}{more}"))
    found += _best("fastest", usable, "speedup", factor)
    found += _best("smallest", usable, "memory_peak", lambda value: f"{memory(value)} on the fullest device")
    best = document.get("recommended")
    if best is not None:
        row, fastest = rows[best], max((row for _, row in usable), key=lambda one: one["samples_per_second"] or 0.0)
        late = f"{plural(row['staleness'], 'update')} stale" if row["staleness"] else "no gradient is late"
        speed = factor(row["speedup"]) if row["speedup"] else units.rate(row["samples_per_second"])
        reasons = [names[best], speed, late, f"{memory(row['memory_peak'])} on the fullest device"]
        if row["samples_per_second"] < fastest["samples_per_second"]:
            gain = "less late" if row["staleness"] < fastest["staleness"] else "smaller"
            reasons.append(f"about as fast as the fastest, and {gain}")
        found.append(("choose", "; ".join(reasons)))
        found.append(("set", "; ".join(row["set"]) or "nothing: it is what the spec says"))
    return found


def _best(
    question: str, rows: Iterable[tuple[str, Mapping[str, Any]]], key: str, write: Callable[[float], str]
) -> Answers:
    """Say which rows have the best of a number; those whose numbers are written alike are no better than each other."""
    known = {name: row[key] for name, row in rows if row[key] is not None}
    if not known:
        return []
    best = write((max if key == "speedup" else min)(known.values()))
    first = [name for name, value in known.items() if write(value) == best]
    others = [f"{len(first) - _NAMED} more"] if len(first) > _NAMED else []
    alike = len(first) == len(known) > 1
    return [(question, "; ".join([best, *(["all of them"] if alike else [*first[:_NAMED], *others])]))]


def comparison_notes(document: Document) -> list[str]:
    """Return what is to be said of single rows, of the speed-ups, and of a window that is short."""
    rows = document["rows"]
    notes = [f"{name}: {row['note']}" for name, row in zip(row_names(document), rows, strict=True) if row["note"]]
    notes.append(f"speed-ups are over {document['speedup_over']}")
    if _of_methods(document) and (window := rows[0]["accumulation"]) < (devices := rows[0]["devices"]):
        notes.append(
            f"an update averages {window} {noun(window, 'micro-batch', 'es')} in a pipeline of {devices} devices: methods that drain it wait "
            "most of the time, and replicas may have too few samples to share; with "
            f"method.accumulation = {2 * devices} they compare better, at larger updates"
        )
    return notes
