"""Drawings by matplotlib as SVG inside a page: they fetch nothing, and their colours follow the page between light and dark.

A drawing is made in the page's light colours. Its SVG then names the style sheet's variable wherever one of them stands.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape
from rich.cells import cell_len

from petra_graph.units import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SERIES = tuple(f"series-{letter}" for letter in "abcdef")
DASHES = ("-", (0, (6, 2.5)), (0, (2, 2)), (0, (7, 2, 2, 2)), (0, (4, 2)), (0, (1, 3)))
SIZE = 11
"""Of letters, in pixels: a figure's inch has 72."""
_INCH = 72
_NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}

Boxes = Sequence[tuple[float, float, float, float]]
"""Left and lower edge, width and height of each."""


@cache
def inks() -> Mapping[str, str]:
    """Return the style sheet's colours on light ground by name."""
    sheet = files("petra_graph_report").joinpath("page.css").read_text(encoding="utf-8")
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", sheet.partition("@media")[0]))


def draw_svg(draw: Callable[[Figure], None], width: float, height: float, label: str) -> Markup:
    """Return what `draw` puts on a figure as an svg element.

    Args:
        draw: places axes and draws, in `inks`.
        width: in pixels, as the height.
        height: of the figure.
        label: what is to be seen, for those who cannot; each drawing of a page has another.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", _style(label)]), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of letters that matplotlib's fonts lack: the page's have them
        figure = Figure(figsize=(width / _INCH, height / _INCH))
        draw(figure)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata=_NO_METADATA)
    return _for_a_page(file.getvalue(), label)


def _style(label: str) -> dict[str, Any]:
    ink = inks()
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": label,
        "text.parse_math": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.spines.left": False,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "font.size": SIZE,
        "xtick.labelsize": SIZE,
        "ytick.labelsize": SIZE,
        "ytick.major.size": 0,
        "legend.frameon": False,
        "figure.dpi": _INCH,
        "savefig.dpi": _INCH,
        "lines.linewidth": 1.8,
        "lines.markersize": 3.5,
        "text.color": ink["text"],
        "axes.labelcolor": ink["soft"],
        "axes.edgecolor": ink["line"],
        "grid.color": ink["line"],
        "xtick.color": ink["line"],
        "xtick.labelcolor": ink["soft"],
        "ytick.labelcolor": ink["soft"],
    }


def _for_a_page(svg: str, label: str) -> Markup:
    """Return an SVG file as an element whose identifiers are its own, and whose colours are the page's."""
    svg = svg[svg.index("<svg") :].replace('pt"', '"')
    svg = re.sub(r' (xmlns(:xlink)?|version)="[^"]*"', "", svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"<style.*?</style>", "", svg, count=1, flags=re.DOTALL)
    names = {colour: f"var(--{name})" for name, colour in reversed(list(inks().items()))}

    def written(tag: re.Match[str]) -> str:
        """Return a tag with two decimals in its coordinates, and the page's colours; texts stay as they are."""
        short = re.sub(r"(\.\d\d)\d+", r"\1", tag[0])
        return re.sub(r"#[0-9a-f]{6}\b", lambda found: names.get(found[0], found[0]), short)

    svg = re.sub(r"<[^<>]*>", written, svg)
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{escape(one_line(label))}"', 1))  # noqa: S704


def text_width(text: str, size: float) -> float:
    """Return the pixels of a text in the widest font that a page may have."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # as above
        width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)
    return float(width) + (cell_len(text) - len(text)) * size / 2


def fill_boxes(axis: Axes, boxes: Boxes, colour: str, edge: str = "none") -> None:
    """Fill boxes as one shape: thousands are drawn like one."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    corners = [[(x, y), (x + width, y), (x + width, y + height), (x, y + height)] for x, y, width, height in boxes]
    if corners:
        shape = Path.make_compound_path(*(Path([*four, four[0]], closed=True) for four in corners))
        width = 0.6 if edge != "none" else 0
        axis.add_patch(PathPatch(shape, facecolor=colour, edgecolor=edge, linewidth=width, clip_on=False))
