"""A table of a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from petra_graph.report.plan.svg import tag
from petra_graph.report.plan.tables import Column


def html_table(columns: Sequence[Column], title: str = "") -> str:
    """Write columns as a table, under their heads or under one title."""
    kinds = ["left" if column.left else "" for column in columns]
    heads = "".join(_cells("th", (column.head for column in columns), kinds))
    if title:
        heads = tag("th", escape(title), colspan=len(columns), class_="left")
    rows = zip(*(column.cells for column in columns), strict=True)
    body = "".join(tag("tr", "".join(_cells("td", row, kinds))) for row in rows)
    return tag("table", tag("thead", tag("tr", heads)) + tag("tbody", body))


def _cells(name: str, texts: Iterable[str], kinds: Iterable[str]) -> Iterable[str]:
    return (tag(name, escape(text), class_=kind) for text, kind in zip(texts, kinds, strict=True))
