"""Bars to one scale, each with its name before it and its total behind it; a bar may have parts, and a limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen
from markupsafe import Markup

from petra_graph.units import Units, bounded, one_line
from petra_graph_report.svg_drawing import SIZE, draw_svg, fill_boxes, inks, text_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LONGEST_NAME = 36
MANY = 60
"""Up to this number of rows are drawn at their full height."""
_LIMIT_REACH = 1.25
"""A limit further out than this would make the bars short: it is given in words alone."""
_THICK = 0.76
_BOLD = 1.12
"""The width of bold letters over that of others."""
_SHORT = 190.0
"""Pixels of the longest bar among charts."""
_AXIS, _BOTTOM = 24.0, 6.0


@frozen(kw_only=True)
class Bar:
    """A bar of several parts."""

    name: str
    parts: Sequence[tuple[float, str]]
    """Values and colours."""
    limit: float | None = None
    text: str = ""
    """What stands behind it; "": its total."""

    @property
    def total(self) -> float:
        return sum(value for value, _ in self.parts)


@frozen(kw_only=True)
class BarChart:
    """Bars among charts, as wide as these."""

    title: str
    rows: Sequence[Bar]
    """At least one."""
    units: Units
    notes: str = ""

    @property
    def drawing(self) -> Markup:
        return bars(self.rows, self.units, self.title, _SHORT)


def row_names(names: Sequence[str], size: float = SIZE) -> tuple[list[str], float]:
    """Return the names of rows as they are drawn, and the pixels that they need."""
    shown = [bounded(one_line(name), LONGEST_NAME) for name in names]
    return shown, max(text_width(name, size) for name in shown) + 12


def bars(rows: Sequence[Bar], units: Units, label: str, widest: float = 640.0) -> Markup:
    """Draw bars below one another, from the first one on.

    Args:
        rows: at least one.
        units: of their values.
        label: what they show.
        widest: the pixels of the longest bar.
    """
    height = (20.0 if len(rows) <= MANY else 14.0) * len(rows) + _AXIS + _BOTTOM
    names, left = row_names([row.name for row in rows])
    most = max(row.total for row in rows) or 1.0
    span = max([most, *(row.limit for row in rows if row.limit is not None and row.limit <= _LIMIT_REACH * most)])
    texts = [
        row.text or units.text(row.total) + (f" of {units.text(row.limit)}" if row.limit is not None else "")
        for row in rows
    ]
    right = max(text_width(text, SIZE) for text in texts) * _BOLD + 14

    def draw(figure: Figure) -> None:
        width = left + widest + right
        axis = figure.add_axes((left / width, _BOTTOM / height, widest / width, 1 - (_AXIS + _BOTTOM) / height))
        name, size = units.fitting(most)
        axis.set_xlim(0, span / size)
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.grid(visible=False, axis="y")
        axis.grid(visible=True, axis="x")
        axis.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
        axis.spines[:].set_visible(False)
        axis.locator_params(axis="x", nbins=6)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,g} {name}" if value else "0")
        axis.set_yticks(range(len(rows)), names, color=inks()["text"])
        _fill(axis, rows, size)
        for at, (row, text) in enumerate(zip(rows, texts, strict=True)):
            over = row.limit is not None and row.total > row.limit
            near = row.limit is not None and row.total <= row.limit <= span and span / most < 1.5  # noqa: PLR2004
            end = row.limit if near and row.limit is not None else row.total
            style: dict[str, Any] = (
                {"color": inks()["bad"], "fontweight": "bold"} if over else {"color": inks()["text"]}
            )
            axis.annotate(
                text,
                (end / size, at),
                (6, 0),
                textcoords="offset pixels",
                va="center_baseline",
                annotation_clip=False,
                **style,
            )
            if row.limit is not None and row.limit <= span:
                axis.plot([row.limit / size] * 2, [at - 0.5, at + 0.5], color=inks()["bad"], linewidth=2, clip_on=False)

    return draw_svg(draw, left + widest + right, height, label)


def _fill(axis: Axes, rows: Sequence[Bar], size: float) -> None:
    by_colour: dict[str, list[tuple[float, float, float, float]]] = {}
    for at, row in enumerate(rows):
        x = 0.0
        for value, colour in row.parts:
            if value:
                by_colour.setdefault(colour, []).append((x / size, at - _THICK / 2, value / size, _THICK))
            x += value
    for colour, boxes in by_colour.items():
        fill_boxes(axis, boxes, colour, inks()["edge"])
