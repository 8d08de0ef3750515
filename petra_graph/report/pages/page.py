"""A page as a value, and its HTML: one file, without scripts, that fetches nothing, with every text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from attrs import frozen

from petra_graph.errors import SpecError, printable
from petra_graph.report.pages.drawing import Picture
from petra_graph.report.tables import Column
from petra_graph.version import __version__

if TYPE_CHECKING:
    from jinja2 import Template

_PACKAGE = "petra_graph.report.pages"


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
    """Return a page; sections that have nothing are left out.

    Args:
        title: of the page.
        sections: in their order.
        about: lines below the title.
        answers: questions in a word, each with what answers it.
        state: lines about how the run, or each run, ended; they stand first.
        warnings: of a plan.
        predicted: nothing on the page was measured.
    """
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
