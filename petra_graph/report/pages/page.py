"""A page as a value, and its HTML: one file, without scripts, that fetches nothing, with every text escaped.

Its pictures are drawn by matplotlib as SVG elements: lines, stacked bars, and the blocks of a timeline.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from attrs import frozen

from petra_graph.errors import SpecError, printable
from petra_graph.report.tables import Column
from petra_graph.units import bounded, one_line, percent, seconds
from petra_graph.version import __version__

if TYPE_CHECKING:
    from jinja2 import Template
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PACKAGE = "petra_graph.report.pages"
COLOURS = ("#0b63b5", "#a84300", "#00704e", "#94307d", "#6b5a00", "#525c66")
"""Of lines, dark on white."""
PART_COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#a6761d", "#cc79a7", "#f0e442")
"""Of the parts of a bar; the colour-blind can tell them apart (Okabe and Ito's, and a brown)."""
VERB_COLOURS = {"forward": "#56b4e9", "backward": "#e69f00", "update": "#a33b00"}
_DASHES = ("-", "--", ":", "-.")
_MARKED = 40
"""Lines with at most this number of points have a mark at each."""
_LONGEST_NAME, _MANY = 36, 60
_STYLE: Mapping[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 8,
    "axes.axisbelow": True,
    "axes.edgecolor": "#d5dae0",
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
class Picture:
    """An SVG element, with what stands above it."""

    title: str
    note: str = ""
    svg: str
    wide: bool = False


@frozen(kw_only=True)
class Line:
    """One line of a chart."""

    name: str
    points: Sequence[tuple[float, float]]
    """Pairs of x and y, in the order of x."""
    band: Sequence[tuple[float, float, float]] = ()
    """The band's x, lower end and upper end at each place."""
    joined: bool = True
    grey: bool = False
    """As what the others are to be compared with."""


@frozen(kw_only=True)
class Section:
    """A part of a page; what it does not have is left out."""

    name: str
    note: str = ""
    pictures: Sequence[Picture] = ()
    tables: Sequence[tuple[str, Sequence[Column]]] = ()
    """Each with its heading."""
    lines: Sequence[str] = ()
    texts: Sequence[tuple[str, str]] = ()
    """Long texts, each with its title."""


def render_page(
    title: str,
    sections: Iterable[Section],
    *,
    about: Sequence[str] = (),
    answers: Sequence[tuple[str, str]] = (),
    state: Sequence[str] = (),
    warnings: Sequence[str] = (),
    predicted: bool = False,
) -> str:
    """Return a page; sections that have nothing are left out. `predicted` says that nothing on the page was measured."""
    held = [one for one in sections if one.pictures or one.tables or one.lines or one.texts]
    style = files(_PACKAGE).joinpath("page.css").read_text(encoding="utf-8")
    return _template().render(
        title=title,
        sections=held,
        about=about,
        answers=answers,
        state=state,
        warnings=warnings,
        predicted=predicted,
        style=style,
        version=__version__,
    )


@cache
def _template() -> Template:
    """Return the template: every text is escaped, a value that is missing is an error."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise SpecError("a page needs jinja2", "pip install 'petra-graph[report]'") from None
    made = Environment(
        loader=PackageLoader(_PACKAGE, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_readable,
    )
    return made.get_template("page.html")


def _readable(value: Any) -> Any:
    """Return a text without characters that change the order in which it is read."""
    return type(value)(printable(value)) if isinstance(value, str) else value


@contextmanager
def _figure(title: str, width: float, height: float) -> Iterator[tuple[Figure, list[str]]]:
    """Give a figure in the pages' style, and a list into which its SVG element goes at the end.

    Raises:
        SpecError: matplotlib is not installed.
    """
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
    except ImportError:
        raise SpecError("a page needs matplotlib", "pip install 'petra-graph[report]'") from None
    found: list[str] = []
    with style.context(["default", {**_STYLE, "svg.hashsalt": title}]), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of letters that matplotlib's fonts lack: the browser's have them
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, found
        file = io.StringIO()
        figure.savefig(
            file, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
        )
    svg = file.getvalue()
    svg = re.sub(r' (xmlns(:xlink)?|version)="[^"]*"', "", svg[svg.index("<svg") :])
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # another picture of the page has the same
    svg = re.sub(r"<style.*?</style>", "", svg, count=1, flags=re.DOTALL)
    found.append(svg.replace("<svg", '<svg role="img"', 1))


def line_chart(
    title: str,
    lines: Sequence[Line],
    x_name: str,
    *,
    note: str = "",
    shares: bool = False,
    logarithmic: bool = False,
    from_zero: bool = False,
    last: bool = True,
) -> list[Picture]:
    """Draw lines over one another, each with its `last` value in the legend; nothing where each line is a single point, as of one epoch.

    Lines without points are left out. `shares` writes y as percentages; its axis is `logarithmic` where all values are above zero.
    """
    lines = [line for line in lines if line.points]
    if not any(len(line.points) > 1 or not line.joined for line in lines):
        return []
    logarithmic = logarithmic and all(y > 0 for line in lines for _, y in line.points)
    with _figure(title, 4.6, 2.9) as (figure, found):
        axis = figure.add_subplot()
        for place, line in enumerate(lines):
            colour = "#9aa4ae" if line.grey else COLOURS[place % len(COLOURS)]
            if line.band:
                xs, low, high = zip(*line.band, strict=True)
                axis.fill_between(xs, low, high, color=colour, alpha=0.18, linewidth=0)
            mark = "os^D"[place // len(COLOURS) % 4] if len(line.points) <= _MARKED else ""
            look: dict[str, Any] = {
                "linestyle": _DASHES[place % 4] if line.joined else "",
                "marker": mark if line.joined else "o",
            }
            axis.plot(*zip(*line.points, strict=True), color=colour, label=_label(line, last, shares), **look)
        axis.set_xlabel(one_line(x_name))
        whole = all(float(x).is_integer() for line in lines for x, _ in line.points)
        axis.locator_params(axis="x", nbins=5, integer=whole)
        if logarithmic:
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.yaxis.set_minor_formatter(lambda *_: "")
        elif from_zero:
            axis.set_ylim(bottom=0)
        if shares:
            axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
        if len(lines) > 1 or lines[0].name:
            columns = 2 if len(lines) > 1 and max(len(_label(line, last, shares)) for line in lines) <= 20 else 1  # noqa: PLR2004
            figure.legend(loc="outside lower left", ncols=columns, handlelength=2.6)
    notes = ", ".join(filter(None, [note, "logarithmic" if logarithmic else ""]))
    return [Picture(title=title, note=notes, svg=found[0])]


def _label(line: Line, last: bool, shares: bool) -> str:
    name, value = bounded(one_line(line.name), _LONGEST_NAME), line.points[-1][1]
    return ": ".join(filter(None, [name, (percent(value, 2) if shares else f"{value:,.4g}") if last else ""]))


def bar_chart(
    title: str,
    bars: Sequence[tuple[str, Sequence[float], float | None]],
    parts: Sequence[str],
    write: Callable[[float], str],
    *,
    note: str = "",
) -> list[Picture]:
    """Draw bars below one another, each with its total behind it, and a red line at its limit: their names, values of `parts`, and limits."""
    height = 0.19 if len(bars) <= _MANY else 0.14
    with _figure(title, 9.6, height * len(bars) + 0.8) as (figure, found):
        axis = figure.add_subplot()
        starts = [0.0] * len(bars)
        for place, part in enumerate(parts):
            values = [bar[1][place] for bar in bars]
            axis.barh(range(len(bars)), values, 0.76, starts, color=PART_COLOURS[place % 8], label=part)
            starts = [start + value for start, value in zip(starts, values, strict=True)]
        furthest = max(starts) or 1.0
        for at, ((_, _, limit), total) in enumerate(zip(bars, starts, strict=True)):
            over = limit is not None and total > limit
            if limit is not None and limit <= 1.25 * furthest:  # a further one would make the bars short
                axis.plot([limit, limit], [at - 0.5, at + 0.5], color="#b00020", linewidth=1.5)
            text = write(total) + (f" of {write(limit)}" if limit is not None else "")
            style: dict[str, Any] = {"color": "#b00020", "fontweight": "bold"} if over else {}
            axis.annotate(text, (total, at), (5, 0), textcoords="offset points", va="center", **style)
        _rows(axis, [name for name, _, _ in bars])
        axis.set_xlim(0, 1.3 * furthest)
        axis.xaxis.set_visible(False)  # the totals are written
        if len(parts) > 1:
            figure.legend(loc="outside lower left", ncols=4)
    return [Picture(title=title, note=note, svg=found[0], wide=True)]


def timeline(title: str, names: Sequence[str], rows: Sequence[Sequence[Mapping[str, Any]]]) -> list[Picture]:
    """Draw the blocks of each stage in a row: F and B with the number of the micro-batch, where there is room."""
    blocks = [block for row in rows for block in row]
    if not blocks:
        return []
    start, end = min(block["start"] for block in blocks), max(block["end"] for block in blocks)
    height = 0.2 if len(rows) <= _MANY else 0.1
    with _figure(title, 11, height * len(rows) + 0.7) as (figure, found):
        axis = figure.add_subplot()
        for at, row in enumerate(rows):
            for verb, colour in VERB_COLOURS.items():
                spans = [(block["start"], block["end"] - block["start"]) for block in row if block["verb"] == verb]
                axis.broken_barh(spans, (at - 0.42, 0.84), facecolor=colour, edgecolor="white", linewidth=0.4)
            for block in row:
                text, long = f"{block['verb'][0].upper()}{block['micro_batch']}", block["end"] - block["start"]
                if block["verb"] != "update" and long / (end - start) > 0.008 * len(text) and len(rows) <= _MANY:
                    axis.text(block["start"] + long / 2, at, text, ha="center", va="center", fontsize=7)
        for verb, colour in VERB_COLOURS.items():
            axis.broken_barh([], (0, 1), facecolor=colour, label=verb)
        _rows(axis, names)
        axis.set_xlim(start, end)
        axis.xaxis.set_major_formatter(lambda value, _: seconds(value) if value else "0")
        figure.legend(loc="outside lower left", ncols=3)
    return [Picture(title=title, svg=found[0], wide=True)]


def _rows(axis: Axes, names: Sequence[str]) -> None:
    """Name the rows, the first at the top; of many rows some."""
    every = 1 if len(names) <= _MANY else len(names) // 30
    shown = [bounded(one_line(name), _LONGEST_NAME) for name in names]
    axis.set_yticks(range(len(names))[::every], shown[::every])
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    axis.grid(visible=False, axis="y")
    axis.grid(visible=True, axis="x")
