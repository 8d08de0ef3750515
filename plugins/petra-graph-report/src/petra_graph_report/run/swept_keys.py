"""The metric by which groups of runs are judged against each key in which they differ: lines over numbers, a bar for each name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from petra_graph.units import PLAIN, Units, bounded
from petra_graph_report.bar_chart import Bar, BarChart
from petra_graph_report.line_chart import Chart, Line
from petra_graph_report.run.metric_values import is_share
from petra_graph_report.run.run_groups import LONGEST_NAME, RunGroup, best_spread, differences, spread_texts
from petra_graph_report.run.spec_differences import in_words, short_key
from petra_graph_report.svg_drawing import inks

_MOST_LINES = 6
"""The combinations of the other keys that have a line each: the best ones."""
_PERCENT = Units(("%",), (0.01,))


def charts_of_numbers(groups: Sequence[RunGroup]) -> list[Chart]:
    """Return a chart for each key whose values are numbers: a line for each combination of the other keys, with the spread over seeds.

    Args:
        groups: the best first.
    """
    judged, rows = _judged(groups), differences(groups)
    return [_chart(key, numbers, judged, rows) for key, row in rows.items() if (numbers := _numbers(row))]


def bars_of_names(groups: Sequence[RunGroup]) -> list[BarChart]:
    """Return bars for each key whose values are names: of each name the best group, the best first, with what it has of the other keys."""
    judged, rows = _judged(groups), differences(groups)
    return [_bars(key, rows, judged) for key, row in rows.items() if not _numbers(row)]


def _judged(groups: Sequence[RunGroup]) -> list[tuple[int, RunGroup]]:
    """Return the groups that have a value of the best one's metric, with their places."""
    found = [best_spread(group) for group in groups]
    metric = next((each[0] for each in found if each), None)
    return [(place, groups[place]) for place, each in enumerate(found) if each and each[0] == metric]


def _numbers(row: Iterable[str]) -> list[float]:
    """Return a key's values if all are numbers."""
    with suppress(ValueError):
        return [float(value.replace("_", "")) for value in row]
    return []


def _chart(
    key: str, numbers: Sequence[float], judged: Sequence[tuple[int, RunGroup]], rows: Mapping[str, Sequence[str]]
) -> Chart:
    words = _others(key, rows)
    places: dict[str, list[int]] = {}
    for place, _ in judged:  # the best first
        places.setdefault(words[place], []).append(place)
    groups, metric = dict(judged), best_metric([group for _, group in judged])
    lines = []
    for style, (name, held) in enumerate(list(places.items())[:_MOST_LINES]):
        spreads = sorted((numbers[place], found[1]) for place in held if (found := best_spread(groups[place])))
        band = [(x, spread.least, spread.largest) for x, spread in spreads if spread.n > 1]
        lines.append(Line(name=name, points=[(x, spread.mean) for x, spread in spreads], band=band, style=style))
    seeds = any(line.band for line in lines)
    left = len(places) - len(lines)
    notes = [
        "mean over the seeds; band: least to largest" if seeds else "",
        f"the {_MOST_LINES} best of {len(places)} lines" if left else "",
    ]
    return Chart(
        title=f"{metric} by {short_key(key)}",
        lines=lines,
        x_name=key,
        shares=is_share(metric, judged[0][1].scales),
        ends=False,
        note="; ".join(filter(None, notes)),
        x_at=sorted(set(numbers)),
    )


def _bars(key: str, rows: Mapping[str, Sequence[str]], judged: Sequence[tuple[int, RunGroup]]) -> BarChart:
    best: dict[str, tuple[int, RunGroup]] = {}
    for place, group in judged:
        best.setdefault(rows[key][place].strip('"'), (place, group))
    words = _others(key, rows)
    names = [f"{name} ({words[place]})" if words[place] else name for name, (place, _) in best.items()]
    found = [each for _, group in best.values() if (each := best_spread(group))]
    metric, scales = found[0][0], judged[0][1].scales
    texts = [(text or "").partition("\n")[0] for text in spread_texts([spread for _, spread in found], metric, scales)]
    drawn = [
        Bar(
            name=bounded(name, LONGEST_NAME),
            parts=[(spread.mean, inks()["accent" if place == 0 else "edge"])],
            text=text,
        )
        for place, (name, (_, spread), text) in enumerate(zip(names, found, texts, strict=True))
    ]
    units = _PERCENT if is_share(metric, scales) else PLAIN
    notes = f"the best group of each {short_key(key)}" if len(rows) > 1 else ""
    return BarChart(title=f"{metric} by {short_key(key)}", rows=drawn, units=units, notes=notes)


def _others(key: str, rows: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """Return what each group has of the other keys, in words."""
    others = {name: row for name, row in rows.items() if name != key}
    return in_words(others) if others else [""] * len(rows[key])


def best_metric(groups: Sequence[RunGroup]) -> str:
    """Return the metric by which the best group is judged."""
    return next((found[0] for group in groups if (found := best_spread(group))), "")
