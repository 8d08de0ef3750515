"""Line charts: axes with round ticks, lines, bands around them, and each line's name next to its end.

A chart is drawn for the narrowest page, and the page widens it. A line is told from the others by its name, its dashes and
its colour, in this order of importance. Where values reach over several powers of ten, the axis is logarithmic; the
chart's note says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from attrs import frozen
from markupsafe import Markup

from petra_graph.report.drawing.axis_ticks import Unit, axis_values, decades, linear_ticks, tick_texts, written
from petra_graph.report.drawing.svg_markup import Drawing, fitted, svg, tag, text_width, title, words
from petra_graph.units import PLAIN

WIDTH, HEIGHT = 340.0, 218.0
STYLES = 6
"""The number of colours and dashes, after which they repeat."""
_DASHES = ("", "7 3", "2 2.5", "9 3 2 3", "4 2", "1 4")
_SIZE = 11
_TOP, _BOTTOM = 10.0, 34.0
_LABEL_STEP = 13.0
_LABEL_GAP = 12.0
_WIDEST_LABEL = 124.0
_BOLD = 1.15
"""A bold text's width over a plain one's."""
_STEPS_X = 5
_MARKED = 40
"""Lines with at most this number of points have a mark at each."""
_EXACT = 1e-9

Values = Sequence[tuple[float, float]]


@frozen(kw_only=True)
class Line:
    """One line of a chart."""

    name: str
    points: Values
    """Pairs of x and y, in the order of x."""
    style: int = 0
    """The number of the line's colour and dashes."""
    band: Sequence[tuple[float, float, float]] = ()
    """The band's x, lower end and upper end at each place."""


@frozen(kw_only=True)
class Chart:
    """A chart, as its page shows it."""

    title: str
    lines: Sequence[Line]
    x_name: str
    unit: Unit = "number"
    """The unit of y."""
    from_zero: bool = False
    """Whether the axis of y begins at zero, whatever the values are."""
    logarithmic_from: float = math.inf
    """The axis of y is logarithmic where the largest value is this many times the smallest, and all are above zero."""
    note: str = ""

    @property
    def logarithmic(self) -> bool:
        """Whether the axis of y is logarithmic."""
        values = _ys(self.lines)
        return min(values) > 0 and max(values) >= self.logarithmic_from * min(values)

    @property
    def drawing(self) -> Drawing:
        return draw(self)

    @property
    def notes(self) -> str:
        """What the reader should know of the drawing."""
        return ", ".join(filter(None, [self.note, "logarithmic" * self.logarithmic]))


@frozen(kw_only=True)
class Scale:
    """Values and the pixels that they are drawn at."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Return the place of a value."""
        low, high, at = (math.log10(v) if self.logarithmic else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (at - low) / (high - low)


def _label(line: Line, unit: Unit) -> str:
    """Return a line's name with its last value; without the value if both are too long, since the name tells lines apart."""
    both = f"{line.name} {written(line.points[-1][1], unit)}".strip()
    text = both if text_width(both, _SIZE * _BOLD) <= _WIDEST_LABEL else line.name
    return fitted(text, _WIDEST_LABEL, _SIZE * _BOLD)


def draw(chart: Chart) -> Drawing:
    """Draw a chart, whose lines have at least one point together."""
    lines = [line for line in chart.lines if line.points]
    most = 1.0 if chart.unit == "share" else math.inf
    ticks = decades(_ys(lines)) if chart.logarithmic else linear_ticks(_ys(lines), zero=chart.from_zero, most=most)
    marks = tick_texts(ticks, chart.unit)
    left = max(text_width(mark, _SIZE) for mark in marks) + 8
    labels = [_label(line, chart.unit) for line in lines]
    right = WIDTH - _LABEL_GAP - max(text_width(label, _SIZE * _BOLD) for label in labels) - 2
    xs = sorted({x for line in lines for x, _ in line.points})
    x_of = Scale(low=xs[0], high=xs[-1], start=left + 4, end=right - 4)
    if xs[0] == xs[-1]:
        x_of = Scale(low=xs[0] - 1, high=xs[0] + 1, start=left + 4, end=right - 4)
    height = max(HEIGHT, _TOP + _BOTTOM + _LABEL_STEP * (len(lines) - 1))
    bottom = height - _BOTTOM
    y_of = Scale(low=ticks[0], high=ticks[-1], start=bottom, end=_TOP, logarithmic=chart.logarithmic)
    parts = [*_grid(ticks, marks, y_of, left, right), *_x_axis(chart.x_name, xs, x_of, bottom)]
    for line in lines:
        parts += _band(line, x_of, y_of)
    for line in lines:
        parts += _line(line, chart, x_of, y_of)
    ends = [(x_of(line.points[-1][0]), y_of(line.points[-1][1])) for line in lines]
    for line, label, end, y in zip(lines, labels, ends, spaced([y for _, y in ends], _TOP, bottom), strict=True):
        parts.append(_stroke([end, (right + 2, y), (right + _LABEL_GAP - 3, y)], "leader", line.style))
        text = words(label, right + _LABEL_GAP, y + _SIZE * 0.36, font_size=_SIZE, class_=f"tail t{_style(line)}")
        parts.append(text)
    return svg(parts, WIDTH, height, class_="lines", role="img", aria_label=f"{chart.title}: {', '.join(labels)}")


def spaced(wanted: Sequence[float], top: float, bottom: float) -> list[float]:
    """Return places for labels near those wanted, none over another, in the same order from top to bottom."""
    order = sorted(range(len(wanted)), key=lambda at: wanted[at])
    step = min(_LABEL_STEP, (bottom - top) / max(1, len(wanted) - 1))
    places = [0.0] * len(wanted)
    least = -math.inf
    for at in order:
        least = places[at] = max(wanted[at], least + step)
    most = bottom
    for at in reversed(order):
        most = places[at] = min(places[at], most)
        most -= step
    return places


def thinned(points: Values, most: int) -> tuple[Values, Sequence[tuple[float, float, float]]]:
    """Return at most this number of points, each the mean of consecutive ones, and the band from their least to their largest."""
    if len(points) <= most:
        return points, ()
    size = math.ceil(len(points) / most)
    groups = [points[at : at + size] for at in range(0, len(points), size)]
    means, band = [], []
    for group in groups:
        x, ys = group[-1][0], [y for _, y in group]
        means.append((x, sum(ys) / len(ys)))
        band.append((x, min(ys), max(ys)))
    return means, band


def _ys(lines: Sequence[Line]) -> list[float]:
    return [y for line in lines for _, y in line.points] + [y for line in lines for _, *ends in line.band for y in ends]


def _style(line: Line) -> int:
    return line.style % STYLES


def _grid(ticks: Sequence[float], marks: Sequence[str], y_of: Scale, left: float, right: float) -> Iterator[Markup]:
    for tick, mark in zip(ticks, marks, strict=True):
        y = y_of(tick)
        yield tag("line", x1=left, x2=right, y1=y, y2=y, class_="grid")
        yield words(mark, left - 5, y + _SIZE * 0.36, font_size=_SIZE, class_="tick y")


def _x_axis(name: str, xs: Sequence[float], x_of: Scale, bottom: float) -> Iterator[Markup]:
    span = xs[-1] - xs[0]
    ticks = axis_values(xs[0], xs[-1], PLAIN, _STEPS_X) if span else [xs[0]]
    if all(x == int(x) for x in xs):
        ticks = [tick for tick in ticks if abs(tick - round(tick)) < _EXACT]
    for tick in ticks:
        x = x_of(tick)
        yield tag("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="grid")
        yield words(f"{tick:,.6g}", x, bottom + 15, font_size=_SIZE, class_="tick x")
    yield words(name, (x_of.start + x_of.end) / 2, bottom + _BOTTOM - 5, font_size=_SIZE, class_="tick x")


def _band(line: Line, x_of: Scale, y_of: Scale) -> Iterator[Markup]:
    if line.band:
        upper = [(x_of(x), y_of(high)) for x, _, high in line.band]
        lower = [(x_of(x), y_of(low)) for x, low, _ in reversed(line.band)]
        yield tag("path", d=_path([*upper, *lower]) + "z", class_=f"band s{_style(line)}")


def _line(line: Line, chart: Chart, x_of: Scale, y_of: Scale) -> Iterator[Markup]:
    places = [(x_of(x), y_of(y)) for x, y in line.points]
    if len(places) > 1:
        yield _stroke(places, "line", line.style)
    if len(places) <= _MARKED:
        for (x, y), (at, value) in zip(places, line.points, strict=True):
            about = title(f"{line.name}, {chart.x_name} {at:,.6g}: {written(value, chart.unit)}")
            yield tag("circle", about, cx=x, cy=y, r=2.2, class_=f"mark s{_style(line)}")


def _stroke(places: Values, kind: str, style: int) -> Markup:
    dash = _DASHES[(style + style // STYLES) % STYLES]  # where colours repeat, dashes do not
    dashes = {"stroke_dasharray": dash} if kind == "line" and dash else {}
    return tag("path", d=_path(places), class_=f"{kind} s{style % STYLES}", **dashes)


def _path(places: Values) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
