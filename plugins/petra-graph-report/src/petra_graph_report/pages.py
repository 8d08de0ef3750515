"""The templates of all pages, and their style: each page is one file that fetches nothing, with every text escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from attrs import frozen
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from petra_graph.errors import printable
from petra_graph.report.text_tables import Column
from petra_graph.units import one_line
from petra_graph.version import __version__
from petra_graph_report.bar_chart import BarChart
from petra_graph_report.line_chart import Chart

_PACKAGE = "petra_graph_report"


@frozen(kw_only=True)
class Part:
    """A part of the page of several plans or runs; what it does not have is left out."""

    name: str
    note: str = ""
    charts: Sequence[Chart | BarChart] = ()
    tables: Sequence[tuple[str, Sequence[Column]]] = ()
    """Each with its heading."""
    lines: Sequence[str] = ()


def render_page(template: str, **values: Any) -> str:
    """Return a page; its texts are `values`, where drawings are markup."""
    return _environment().get_template(template).render(values)


def render_parts(title: str, parts: Sequence[Part], **values: Any) -> str:
    """Return the page of several plans or runs.

    Args:
        title: of the page.
        parts: those that have something are shown.
        values: `about`, `answers`, `state`, `assumptions`, or `predicted`, as `several.html` has them.
    """
    held = [part for part in parts if part.charts or part.tables or part.lines]
    absent = {"about": "", "answers": (), "state": (), "assumptions": (), "predicted": False}
    return render_page("several.html", title=title, parts=held, **(absent | values))


@cache
def _environment() -> Environment:
    """Return the environment of the templates: every text is escaped, a value that is missing is an error."""
    made = Environment(
        loader=PackageLoader(_PACKAGE, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_readable,
    )
    made.filters["one_line"] = one_line
    made.filters["with_code"] = _with_code
    made.globals.update(version=__version__, style=_style)
    return made


def _with_code(text: str) -> Markup:
    """Return a text whose parts between backticks are code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704  it is escaped


def _readable(value: Any) -> Any:
    """Return a text of a template without characters that change the order in which it is read."""
    if not isinstance(value, str):
        return value
    return Markup(printable(value)) if isinstance(value, Markup) else printable(value)  # noqa: S704  it was markup before


def _style() -> Markup:
    return Markup(files(_PACKAGE).joinpath("page.css").read_text(encoding="utf-8"))  # noqa: S704  a file of this package
