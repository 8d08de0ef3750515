"""The templates and styles of all pages: each is one file that fetches nothing, with every text escaped."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from attrs import frozen
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from petra_graph.errors import printable
from petra_graph.units import one_line
from petra_graph.version import __version__

_PACKAGE = "petra_graph.report"


@frozen
class Figure:
    """A number that a reader looks for first, with a note."""

    name: str
    value: str
    note: str


def rendered(template: str, **values: Any) -> str:
    """Return a page; its texts are `values`, where drawings are markup."""
    return _environment().get_template(template).render(values)


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
    made.globals.update(version=__version__, resource=resource)
    return made


def _readable(value: Any) -> Any:
    """Return a text of a template without characters that change the order in which it is read."""
    if not isinstance(value, str):
        return value
    return Markup(printable(value)) if isinstance(value, Markup) else printable(value)  # noqa: S704  it was markup before


@cache
def resource(path: str) -> Markup:
    """Return a style sheet or a script of the report's folder."""
    text = files(_PACKAGE).joinpath(path).read_text(encoding="utf-8")
    return Markup(text)  # noqa: S704  a file of this package
