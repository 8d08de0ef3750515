"""A page: one file, without scripts, that fetches nothing, with every text escaped, and pictures that matplotlib draws as SVG elements."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from attrs import frozen

from petra_graph.errors import SpecError
from petra_graph.report.tables import Column
from petra_graph.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PACKAGE = "petra_graph.report.pages"
LONGEST_NAME = 36  # in a picture
_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 8,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": "#e4e8ec",
    "legend.frameon": False,
}


@frozen(kw_only=True)
class Section:
    """A part of a page; what it does not have is left out."""

    name: str
    note: str = ""
    pictures: Sequence[str] = ()  # SVG elements
    tables: Sequence[tuple[str, Sequence[Column]]] = ()  # each with its heading
    lines: Sequence[str] = ()


def render_page(title: str, sections: Iterable[Section], **more: Sequence[Any]) -> str:
    """Return a page; sections that have nothing are left out. There may be more: lines `about` it, `answers` with their questions, `warnings`."""
    from jinja2 import Environment, PackageLoader

    loader = PackageLoader(_PACKAGE, "")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("page.html").render(
        title=title,
        sections=[one for one in sections if one.pictures or one.tables or one.lines],
        **more,
        style=files(_PACKAGE).joinpath("page.css").read_text(encoding="utf-8"),
        version=__version__,
    )


def drawn(title: str, size: tuple[float, float], draw: Callable[[Figure, Axes], None]) -> str:
    """Draw a picture in the pages' style, of a size in inches, as an SVG element; raise SpecError if matplotlib is not installed."""
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
    except ImportError:
        raise SpecError("a page needs matplotlib", "pip install 'petra-graph[report]'") from None
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
