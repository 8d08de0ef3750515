"""Line charts: lines, bands around them, and a legend with each line's last value where the lines are over time.

A line is told from the others by its colour, dashes and marks, a point by its colour and mark. Where values reach over several powers of ten, the axis is
logarithmic; the chart's note says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen
from markupsafe import Markup

from petra_graph.units import COUNTS, bounded, one_line, percent
from petra_graph_report.svg_drawing import DASHES, SERIES, SIZE, draw_svg, inks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 360.0, 214.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 12.0, 8.0, 38.0
"""Pixels around the axes, without the legend."""
_LEGEND_LINE = 17.0
_LONGEST_NAME, _LONGEST_OF_TWO = 34, 20
_STEPS = (1, 2, 2.5, 5, 10)
_MARKS = "os^D"
_POINT = 6.0
"""Pixels of a point that is alone in its line."""
_MARKED = 40
"""Lines with at most this number of points have a mark at each."""
_LARGE, _COUNTED = 10_000, 100_000
_WIDE = 5.0
"""From this factor between named values of x on, their axis is logarithmic."""
_FINE = 100.0
"""Up to this factor between its ends, a logarithmic axis has values at 2 and 5 too."""

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
    background: bool = False
    """Whether its points are not joined, and grey, as what the others are to be compared with."""


@frozen(kw_only=True)
class Chart:
    """A chart, as its page shows it; its lines have at least one point together."""

    title: str
    lines: Sequence[Line]
    x_name: str
    shares: bool = False
    """Whether y is a share, written as a percentage."""
    from_zero: bool = False
    """Whether the axis of y begins at zero, whatever the values are."""
    logarithmic_from: float = math.inf
    """The axis of y is logarithmic where the largest value is this many times the smallest, and all are above zero."""
    ends: bool = True
    """Whether the legend has the last value of each line: over a key or the stages, the last value says no more than another."""
    note: str = ""
    x_at: Sequence[float] = ()
    """Values of x that the axis names; without them, round ones. If they span a factor of five, the axis is logarithmic."""

    @property
    def drawing(self) -> Markup:
        lines = [line for line in self.lines if line.points]
        labels = [_label(line, self) for line in lines]
        named = any(line.name for line in lines)
        legend = -(-len(lines) // _columns(labels)) * _LEGEND_LINE + 4 if named else 0
        height = _HEIGHT + legend

        def draw(figure: Figure) -> None:
            low, high = (_BOTTOM + legend) / height, 1 - _TOP / height
            axis = figure.add_axes((_LEFT / _WIDTH, low, 1 - (_LEFT + _RIGHT) / _WIDTH, high - low))
            _draw(axis, self, lines, labels)
            if not named:
                return
            figure.legend(
                loc="lower left",
                bbox_to_anchor=(4 / _WIDTH, 0),
                borderaxespad=0,
                borderpad=0,
                ncols=_columns(labels),
                fontsize=SIZE,
                handlelength=2.6,
                columnspacing=1.2,
                labelspacing=(_LEGEND_LINE - SIZE * 1.2) / SIZE,
            )

        return draw_svg(draw, _WIDTH, height, f"{self.title}: {', '.join(labels)}")

    @property
    def notes(self) -> str:
        """What the reader should know of the drawing."""
        return ", ".join(filter(None, [self.note, "logarithmic" * self.logarithmic]))

    @property
    def logarithmic(self) -> bool:
        return self.reach >= self.logarithmic_from

    @property
    def reach(self) -> float:
        """How many times the smallest value the largest one is; 0 where one is not above zero."""
        values = [y for line in self.lines for _, y in line.points]
        values += [y for line in self.lines for _, *ends in line.band for y in ends]
        return max(values) / min(values) if min(values) > 0 else 0.0


def _label(line: Line, chart: Chart) -> str:
    if line.background:
        return line.name
    name = bounded(one_line(line.name), _LONGEST_NAME)
    if not chart.ends:
        return name
    last = line.points[-1][1]
    value = percent(last, 2) if chart.shares else f"{last:,.0f}" if abs(last) >= _LARGE else f"{last:,.4g}"
    return f"{name}: {value}" if name else value


def _columns(labels: Sequence[str]) -> int:
    return 2 if len(labels) > 1 and max(map(len, labels)) <= _LONGEST_OF_TWO else 1


def _draw(axis: Axes, chart: Chart, lines: Sequence[Line], labels: Sequence[str]) -> None:
    for line, label in zip(lines, labels, strict=True):
        again, style = divmod(line.style, len(SERIES))
        colour = inks()[SERIES[style]]
        if line.band:
            xs, low, high = zip(*line.band, strict=True)
            axis.fill_between(xs, low, high, color=colour, alpha=0.2, linewidth=0)
        mark = _MARKS[again % len(_MARKS)] if len(line.points) <= _MARKED else ""
        look: dict[str, Any] = {"linestyle": DASHES[(style + again) % len(DASHES)], "marker": mark}
        if line.background:
            colour, look = inks()["soft"], {"linestyle": "", "marker": mark}
        elif len(line.points) == 1:
            look = {"linestyle": "", "marker": _MARKS[line.style % len(_MARKS)], "markersize": _POINT}
        axis.plot(*zip(*line.points, strict=True), color=colour, label=label, clip_on=False, **look)
    axis.set_xlabel(one_line(chart.x_name))
    _ticks(axis, chart, [x for line in lines for x, _ in line.points])


def _number(value: float, _: float) -> str:
    return COUNTS.text(value) if abs(value) >= _COUNTED else f"{value:,.7g}"


def _ticks(axis: Axes, chart: Chart, xs: Sequence[float]) -> None:
    from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator, PercentFormatter

    if chart.x_at:
        if min(chart.x_at) > 0 and max(chart.x_at) >= _WIDE * min(chart.x_at):
            axis.set_xscale("log")
            axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_locator(FixedLocator(chart.x_at))
    else:
        axis.xaxis.set_major_locator(MaxNLocator(5, steps=_STEPS, integer=all(x == int(x) for x in xs), min_n_ticks=1))
    axis.xaxis.set_major_formatter(_number)
    if chart.logarithmic:
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if chart.reach < _FINE else (1.0,)))
        axis.yaxis.set_minor_locator(NullLocator())
    else:
        axis.yaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
    if chart.from_zero and not chart.logarithmic:
        axis.set_ylim(bottom=0)
    if chart.shares:
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    else:
        axis.yaxis.set_major_formatter(_number)
