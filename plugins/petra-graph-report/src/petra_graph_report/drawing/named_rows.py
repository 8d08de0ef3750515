"""Rows below an axis, with their names next to them: stacked bars to one scale, or whatever else has one row for each name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from attrs import frozen
from markupsafe import Markup

from petra_graph.report.drawing.axis_ticks import axis_values
from petra_graph.report.drawing.svg_markup import Drawing, fitted, svg, tag, text_width, title, words
from petra_graph.units import Units, one_line

MANY = 60
"""Up to this number of rows are drawn at their full height."""
ROW_NAME_MARGINS = 12
"""Pixels to the left and to the right of a row's name."""
_AXIS = 22
"""The height of a drawing's upper edge, where the values of its axis are written."""
_EDGE = 10
"""The distance from the left edge below which a value's text begins at the edge; other texts are centred."""
_WIDEST_NAMES = 230
"""The most pixels for the names of the rows."""
_GRID_LINES = 5
_BARS = 800
_LIMIT_REACH = 1.25
"""A limit further out than this would make the bars short: it is given in words alone."""


@frozen(kw_only=True)
class Rows:
    """Rows of one height."""

    names: Sequence[str]
    height: float
    size: float
    """The size of the names' letters."""

    @property
    def bottom(self) -> float:
        return self.top(len(self.names))

    def top(self, place: int) -> float:
        return _AXIS + self.height * place

    def baseline(self, place: int) -> float:
        """Return the baseline of a text in the middle of a row."""
        return self.top(place) + self.height / 2 + self.size * 0.36

    def drawn(
        self,
        content: Iterable[Markup],
        *,
        span: tuple[float, float],
        units: Units,
        x_of: Callable[[float], float],
        width: float,
        kind: str,
        label: str,
    ) -> tuple[Drawing, Drawing]:
        """Draw the names, and what the rows have, below an axis.

        Args:
            content: of the rows.
            span: the first and the last value of the axis.
            units: of these values.
            x_of: returns a value's place.
            width: of the rows, without names.
            kind: the class of the rows' drawing.
            label: what it shows, for those who cannot see it.
        """
        parts: list[Markup] = []
        for value in axis_values(*span, units, _GRID_LINES):
            x = x_of(value)
            parts.append(_vertical(x, _AXIS - 4, self.bottom, "grid"))
            style = "axis first" if x < _EDGE else "axis"
            parts.append(words(units.text(value) if value else "0", x, _AXIS - 8, class_=style))
        drawing = svg([*parts, *content], width, self.bottom + 4, class_=kind, role="img", aria_label=label)
        return self._names(), drawing

    def _names(self) -> Drawing:
        """Draw the names, as many as have room, each with as much of it as fits.

        Where a narrow page takes width from the names, their beginnings are cut.
        """
        every = max(1, math.ceil((self.size + 2) / self.height))
        shown = [(name, self.baseline(at)) for at, name in enumerate(self.names) if at % every == 0]
        widest = max(text_width(one_line(name), self.size) for name, _ in shown)
        width, height = min(_WIDEST_NAMES, widest + ROW_NAME_MARGINS), self.bottom + 4
        column = [tag("rect", x=0, y=0, width=width, height=height, class_="under")]
        for name, y in shown:
            text = fitted(name, width - ROW_NAME_MARGINS, self.size)
            column.append(words(text, width - 8, y, class_="row", font_size=self.size))
        return svg(column, width, height, class_="names", preserveAspectRatio="xMaxYMid slice")


def beside(drawings: Iterable[Markup]) -> Markup:
    """Put rows' names next to their drawing, so that they stay where they are when it is scrolled."""
    return tag("div", *drawings, class_="beside")


@frozen(kw_only=True)
class Bar:
    """A bar of several parts."""

    name: str
    parts: Sequence[tuple[str, float, str]]
    """Names, values and colours; those without a value are not drawn."""
    total: float
    limit: float | None = None


def bars(rows: Sequence[Bar], units: Units, label: str, widest: float = _BARS) -> tuple[Drawing, Drawing]:
    """Draw bars below each other, with their totals; names and bars.

    Args:
        rows: at least one.
        units: of the values.
        label: what the drawing shows, for those who cannot see it.
        widest: pixels of the longest bar.
    """
    height, size = (22.0, 12) if len(rows) <= MANY else (15.0, 10)
    placed = Rows(names=[row.name for row in rows], height=height, size=size)
    most = max(row.total for row in rows) or 1
    span = max([most, *(row.limit for row in rows if row.limit is not None and row.limit <= _LIMIT_REACH * most)])
    content = (part for at, row in enumerate(rows) for part in _bar(row, placed, at, span, units, widest=widest))
    return placed.drawn(
        content,
        span=(0, span),
        units=units,
        x_of=lambda value: widest * value / span,
        width=widest + widest / 4,
        kind="bars",
        label=label,
    )


def _bar(row: Bar, rows: Rows, at: int, span: float, units: Units, *, widest: float) -> Iterator[Markup]:
    top, height, x = rows.top(at), rows.height, 0.0
    shown = [part for part in row.parts if part[1]]
    lines = [f"{name}: {units.text(value)}" for name, value, _ in shown]
    text, kind = units.text(row.total), "total"
    bar = title("\n".join([row.name, *lines, f"total: {text}"]))
    for _, value, colour in shown:
        width = widest * value / span
        bar += tag("rect", x=x, y=top + 2, width=width, height=height - 4, fill=colour)
        x += width
    # Some parts' colours are near the page's: the outline shows where the bar ends.
    yield tag("g", bar + tag("rect", x=0, y=top + 2, width=x, height=height - 4, class_="outline"))
    if row.limit is not None:
        text += f" of {units.text(row.limit)}"
        kind = "over" if row.total > row.limit else "total"
        if row.limit <= span:
            limit = widest * row.limit / span
            yield _vertical(limit, top, top + height, "limit")
            x = max(x, limit) if limit - x < len(text) * rows.size * 0.6 else x
    yield words(text, x + 6, rows.baseline(at), class_=kind, font_size=rows.size)


def _vertical(x: float, top: float, bottom: float, kind: str) -> Markup:
    return tag("line", x1=x, x2=x, y1=top, y2=bottom, class_=kind)
