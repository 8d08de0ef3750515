"""Tables and paragraphs as plain text; pages show the same columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from textwrap import wrap
from typing import Any

from attrs import frozen

from petra_graph.errors import printable
from petra_graph.units import bounded, one_line

WIDTH = 80  # of a line on a terminal


@frozen
class Column:
    """A column of a table: its head, of one line or several, and a cell for each row."""

    head: str
    cells: Sequence[str]
    left: bool = False


def value_column(head: str, values: Iterable[Any], write: Callable[[Any], str] = str) -> Column:
    """Return a column of values; a None is unknown, or does not apply."""
    return Column(head, ["-" if value is None else write(value) for value in values])


def name_column(head: str, names: Iterable[str], width: int = 60) -> Column:
    """Return a column of names, cut to a width."""
    return Column(head, [bounded(one_line(name), width) for name in names], left=True)


def aligned(rows: Iterable[Sequence[str]], left: Iterable[bool] = repeat(True)) -> list[str]:
    """Return rows as lines whose cells stand below one another, to the left, or as `left` says; columns without any text are left out."""
    # A cell of a file or a plugin neither controls the terminal nor begins a row.
    cells = [[printable(cell).replace("\n", "\\n") for cell in row] for row in rows]
    columns = []
    for column, to_the_left in zip(zip(*cells, strict=True), left, strict=False):
        if width := max(map(len, column)):
            columns.append([cell.ljust(width) if to_the_left else cell.rjust(width) for cell in column])
    return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]


def table_lines(columns: Sequence[Column], width: int = WIDTH) -> Iterator[str]:
    """Yield the lines of a table, or of several below one another where it is wider than `width`; each begins with the first column."""
    key, *others = columns
    while others:
        taken = [key, others.pop(0)]
        while others and _width([*taken, others[0]]) <= width:
            taken.append(others.pop(0))
        heads = [column.head.split("\n") for column in taken]
        height = max(map(len, heads))
        above = zip(*([""] * (height - len(head)) + head for head in heads), strict=True)
        rows = zip(*(column.cells for column in taken), strict=True)
        lines = aligned([*above, *rows], [column.left for column in taken])
        yield from (*lines[:height], "─" * _width(taken), *lines[height:], *[""] * bool(others))


def _width(columns: Sequence[Column]) -> int:
    return sum(max(map(len, [*one.head.split("\n"), *one.cells])) + 2 for one in columns) - 2


def paragraph(text: str, begin: str = "") -> list[str]:
    """Return a text as lines that stand beside what the first one begins with."""
    return wrap(one_line(text), WIDTH, initial_indent=begin, subsequent_indent=" " * len(begin), break_on_hyphens=False)
