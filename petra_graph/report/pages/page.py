"""A page: one file, without scripts, that fetches nothing, with every text escaped, and pictures that matplotlib draws as SVG elements."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from attrs import frozen

from petra_graph.compiler.timing import Event
from petra_graph.errors import SpecError
from petra_graph.report.tables import Column
from petra_graph.units import bounded, one_line, percent, seconds
from petra_graph.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PACKAGE = "petra_graph.report.pages"
_VERB_COLOURS = {"forward": "#56b4e9", "backward": "#e69f00", "update": "#a33b00"}
_LONGEST_NAME = 36
_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 8,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": "#e4e8ec",
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 3,
}


@frozen(kw_only=True)
class Line:
    """One line of a chart: pairs of x and y, in the order of x, and the x, lower end and upper end of its band."""

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()


@frozen(kw_only=True)
class Section:
    """A part of a page; what it does not have is left out."""

    name: str
    note: str = ""
    pictures: Sequence[str] = ()
    """SVG elements."""
    tables: Sequence[tuple[str, Sequence[Column]]] = ()
    """Each with its heading."""
    lines: Sequence[str] = ()


def render_page(
    title: str,
    sections: Iterable[Section],
    *,
    answers: Sequence[tuple[str, str]] = (),
    about: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> str:
    """Return a page; sections that have nothing are left out. Raises SpecError: what makes it is not installed."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise _missing("jinja2") from None
    environment = Environment(
        loader=PackageLoader(_PACKAGE, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        title=title,
        sections=[one for one in sections if one.pictures or one.tables or one.lines],
        about=about,
        answers=answers,
        warnings=warnings,
        style=files(_PACKAGE).joinpath("page.css").read_text(encoding="utf-8"),
        version=__version__,
    )


def _missing(package: str) -> SpecError:
    return SpecError(f"a page needs {package}", "pip install 'petra-graph[report]'")


def _drawn(title: str, size: tuple[float, float], draw: Callable[[Figure, Axes], None]) -> str:
    """Draw a picture in the pages' style, of a size in inches, as an SVG element."""
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
    except ImportError:
        raise _missing("matplotlib") from None
    file = io.StringIO()
    # The colour-blind can tell its colours apart.
    styles: list[Any] = ["default", "tableau-colorblind10", {**_STYLE, "svg.hashsalt": title}]
    with style.context(styles), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of letters that matplotlib's fonts lack: the browser's have them
        figure = Figure(figsize=size, layout="constrained")
        axis = figure.add_subplot()
        axis.set_title(title, loc="left", fontweight="bold")
        draw(figure, axis)
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=metadata)
    svg = file.getvalue()
    return re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg[svg.index("<svg") :])


def line_chart(title: str, lines: Sequence[Line], x_name: str, *, shares: bool = False) -> list[str]:
    """Draw lines over one another, each with its last value in the legend; nothing where each is a point or empty. `shares` writes y as percentages."""
    lines = [line for line in lines if line.points]
    if not any(len(line.points) > 1 for line in lines):
        return []

    def draw(figure: Figure, axis: Axes) -> None:
        for line in lines:
            value = line.points[-1][1]
            written = percent(value, 2) if shares else f"{value:,.4g}"
            name = ": ".join(filter(None, [bounded(one_line(line.name), _LONGEST_NAME), written]))
            (drawn,) = axis.plot(*zip(*line.points, strict=True), label=name)
            if line.band:
                xs, low, high = zip(*line.band, strict=True)
                axis.fill_between(xs, low, high, color=drawn.get_color(), alpha=0.18, linewidth=0)
        axis.set_xlabel(x_name)
        axis.locator_params(axis="x", nbins=5, integer=True)
        if shares:
            axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
        if len(lines) > 1 or lines[0].name:
            figure.legend(loc="outside lower left")

    return [_drawn(title, (4.6, 2.9), draw)]


def bar_chart(
    title: str,
    bars: Sequence[tuple[str, Sequence[float], float | None]],
    parts: Sequence[str],
    write: Callable[[float], str],
) -> str:
    """Draw bars below one another, each with its total behind it, red above its limit: their names, values of `parts`, and limits."""

    def draw(figure: Figure, axis: Axes) -> None:
        starts = [0.0] * len(bars)
        for place, part in enumerate(parts):
            values = [bar[1][place] for bar in bars]
            axis.barh(range(len(bars)), values, 0.76, starts, label=part)
            starts = [start + value for start, value in zip(starts, values, strict=True)]
        for at, ((_, _, limit), total) in enumerate(zip(bars, starts, strict=True)):
            text = write(total) + ("" if limit is None else f" of {write(limit)}")
            colour = "#b00020" if limit is not None and total > limit else "black"
            axis.annotate(text, (total, at), (5, 0), textcoords="offset points", va="center", color=colour)
        _name_rows(axis, [name for name, _, _ in bars])
        axis.set_xlim(0, 1.3 * (max(starts) or 1.0))
        axis.xaxis.set_visible(False)  # the totals are written
        figure.legend(loc="outside lower left", ncols=4)

    return _drawn(title, (9.6, 0.19 * len(bars) + 0.8), draw)


def timeline(title: str, names: Sequence[str], rows: Sequence[Sequence[Event]]) -> str:
    """Draw the blocks of each stage in a row: F and B with the number of the micro-batch, where there is room."""
    start = min(block.start for row in rows for block in row)
    end = max(block.end for row in rows for block in row)

    def draw(figure: Figure, axis: Axes) -> None:
        for verb, colour in _VERB_COLOURS.items():
            axis.broken_barh([], (0, 1), facecolor=colour, label=verb)
            for at, row in enumerate(rows):
                spans = [(block.start, block.end - block.start) for block in row if block.verb == verb]
                axis.broken_barh(spans, (at - 0.42, 0.84), facecolor=colour, edgecolor="white", linewidth=0.4)
        for at, row in enumerate(rows):
            for block in row:
                text, long = f"{block.verb[0].upper()}{block.micro_batch}", block.end - block.start
                if block.verb != "update" and long / (end - start) > 0.008 * len(text):
                    axis.text(block.start + long / 2, at, text, ha="center", va="center", fontsize=7)
        _name_rows(axis, names)
        axis.set_xlim(start, end)
        axis.xaxis.set_major_formatter(lambda value, _: seconds(value) if value else "0")
        figure.legend(loc="outside lower left", ncols=3)

    return _drawn(title, (11, 0.2 * len(rows) + 0.7), draw)


def _name_rows(axis: Axes, names: Sequence[str]) -> None:
    """Name the rows, the first at the top."""
    axis.set_yticks(range(len(names)), [bounded(one_line(name), _LONGEST_NAME) for name in names])
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    axis.grid(visible=False, axis="y")
