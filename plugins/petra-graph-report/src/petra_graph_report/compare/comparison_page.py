"""Plans compared as a page: the tables of the terminal, with pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from petra_graph import units
from petra_graph.errors import shown
from petra_graph.program.plan_document import Document
from petra_graph.report.plan.plan_answers import Answer
from petra_graph.report.text_tables import Column
from petra_graph_report.bar_chart import Bar, BarChart
from petra_graph_report.compare.comparison_tables import comparison_of, method_names
from petra_graph_report.line_chart import Chart, Line
from petra_graph_report.pages import Part, render_parts
from petra_graph_report.svg_drawing import inks

_COLOURS = "Blue bars: no other row is better in speed, memory and staleness at once. Grey: another row is. Red: it does not fit."


def comparison_page(document: Document) -> str:
    """Write what `plan --compare`, `plan --scale` or `plan --vary` found as a page."""
    found = comparison_of(document)
    methods = "micro_batch" in document
    charts: Sequence[Chart | BarChart]
    if "varied" in document:
        charts = varied_charts(document)
    elif methods:
        charts = [*speed_and_memory(document["rows"]), *_method_bars(document)]
    else:
        charts = _throughput(document["rows"])
    parts = [
        Part(name="pictures", charts=charts, note=_COLOURS if methods else ""),
        Part(name="table", tables=[(title, _without_bars(columns)) for title, columns in found.tables]),
        *(Part(name=title, lines=lines) for title, lines in found.notes),
    ]
    answers = found.answers or _fastest(document)
    return render_parts(found.title, parts, answers=answers, assumptions=found.assumptions, predicted=True)


def _without_bars(columns: Sequence[Column]) -> list[Column]:
    """Return a table without the bars of letters that a terminal has: the page draws them."""
    return [column for column in columns if column.head]


def _method_bars(document: Document) -> Iterator[BarChart]:
    """Yield bars of the methods that have a value; those that do not fit, and those that another one beats, have other colours."""
    rows = document["rows"]
    for key, title, unit in (
        ("memory_peak", "memory of the fullest device", units.BINARY),
        ("speedup", f"speed, times {document.get('speedup_over', '')}", units.PLAIN),
    ):
        drawn = [
            Bar(name=name, parts=[(row[key], inks()[_colour(row)])])
            for name, row in zip(method_names(rows), rows, strict=True)
            if row[key] is not None
        ]
        if drawn:
            yield BarChart(title=title, rows=drawn, units=unit)


def _colour(row: Document) -> str:
    return "bad" if row.get("fits") is False else "accent" if row["unbeaten"] else "edge"


def _fastest(document: Document) -> Iterator[Answer]:
    """Yield which number of devices, or which values, is the fastest of those that fit."""
    known = [row for row in document["rows"] if row["samples_per_second"] is not None and row.get("fits") is not False]
    if not known:
        return
    best = max(known, key=lambda row: row["samples_per_second"])
    name = best["name"] if "varied" in document else units.plural(best["devices"], "device")
    memory = f"{units.memory(best['memory_peak'])} on the fullest device"
    yield Answer("fastest", name, (f"{units.rate(best['samples_per_second'])}", memory))


def _throughput(rows: Sequence[Document]) -> list[Chart]:
    """Return the throughput over the number of devices, and what it would be if each device added as much as the first ones."""
    points = [(row["devices"], row["samples_per_second"]) for row in rows if row["samples_per_second"] is not None]
    if not points:
        return []
    first, rate = points[0]
    lines = [
        Line(name="planned", points=points),
        Line(name="if no device waited", points=[(x, rate * x / first) for x, _ in points], style=1),
    ]
    at = [x for x, _ in points]
    return [Chart(title="throughput", lines=lines, x_name="devices", from_zero=True, note="samples a second", x_at=at)]


def speed_and_memory(rows: Sequence[Document]) -> list[Chart]:
    """Return each row that fits as a point: those that no other one beats by their names, the others as a background."""
    named = list(zip(method_names(rows), rows, strict=True))
    points = {
        name: (row["memory_peak"] / 2**30, row["samples_per_second"])
        for name, row in named
        if row["memory_peak"] is not None and row["fits"] is not False
    }
    best = [name for name, row in named if row["unbeaten"]]
    beaten = sorted(point for name, point in points.items() if name not in best)
    lines = [Line(name=name, points=[points[name]], style=style) for style, name in enumerate(best)]
    lines += [Line(name="beaten in speed, staleness and memory", points=beaten, background=True)] if beaten else []
    title, note = "speed against memory, of rows that fit", "samples a second; better is further up and further left"
    return [Chart(title=title, lines=lines, x_name="fullest device, GiB", from_zero=True, note=note)] if best else []


def varied_charts(document: Document) -> list[Chart] | list[BarChart]:
    """Return the throughput over the numbers of the first key, a line for each combination of the others, or a bar for each name; none where all are refused."""
    first, *others = document["varied"]
    planned = [row for row in document["rows"] if not row["refused"]]
    missing = len(document["rows"]) - len(planned)
    refused = f"; {units.plural(missing, 'refusal')} not drawn" if missing else ""
    found = _places(first, [row["values"][first] for row in document["rows"]])
    if found is None:
        rows = [Bar(name=row["name"], parts=[(row["samples_per_second"], inks()["accent"])]) for row in planned]
        title = f"throughput by {first}"
        return [BarChart(title=title, rows=rows, units=units.PLAIN, notes=f"samples a second{refused}")] if rows else []
    places, name = found
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in planned:
        of_others = ", ".join(_text(row["values"][key]) for key in others)
        lines.setdefault(of_others, []).append((places[_text(row["values"][first])], row["samples_per_second"]))
    drawn = [Line(name=one, points=sorted(points), style=style) for style, (one, points) in enumerate(lines.items())]
    note = "samples a second" + (f"; lines: {', '.join(others)}" if others else "") + refused
    at = sorted({x for points in lines.values() for x, _ in points})
    return [Chart(title="throughput", lines=drawn, x_name=name, from_zero=True, note=note, x_at=at)] if drawn else []


def _places(key: str, values: Sequence[Any]) -> tuple[dict[str, float], str] | None:
    """Return where the values of a key, as texts, are on an axis, and the axis's name: as numbers or as GiB; None of names."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return {_text(value): float(value) for value in values}, key
    texts = list(dict.fromkeys(map(_text, values)))
    with suppress(ValueError):
        return {text: units.byte_count(text) / 2**30 for text in texts}, f"{key}, GiB"
    return None


def _text(value: Any) -> str:
    """Return a value as a specification has it, without the quotes of a text."""
    return value if isinstance(value, str) else shown(value)
