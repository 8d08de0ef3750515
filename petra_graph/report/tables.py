"""Tables and paragraphs for terminals of any width and for pages; rich lays them out, and nothing is read from the environment."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from attrs import frozen
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from petra_graph.errors import printable
from petra_graph.units import NOTHING, bounded, one_line

_COLOURS = r"\x1b\[[0-9;]*m"
_SHORT = 12
"""Up to this number of rows, a table is short."""


@frozen(kw_only=True)
class Column:
    """A column of a table, all its cells in order."""

    head: str
    cells: Sequence[str]
    left: bool = False
    styles: Sequence[str] = ()
    """The style of each row, where cells have colours."""

    @property
    def width(self) -> int:
        """The characters that the column needs, with the gap behind it."""
        return 2 + max(map(cell_len, [*self.head.split("\n"), *self.cells]))


def value_column(head: str, values: Iterable[Any], write: Callable[[Any], str] = str) -> Column:
    """Return a column of values; a None is unknown, or does not apply."""
    return Column(head=head, cells=[NOTHING if value is None else write(value) for value in values])


def name_column(head: str, names: Iterable[str], width: int = 60, styles: Sequence[str] = ()) -> Column:
    """Return a column of names, cut to a width."""
    return Column(head=head, cells=[bounded(one_line(name), width) for name in names], left=True, styles=styles)


def pair_columns(title: str, pairs: Iterable[tuple[str, str]]) -> list[Column]:
    """Return a column of names under a title, and a column of their values."""
    names, values = zip(*pairs, strict=True)
    return [Column(head=title, cells=names, left=True), Column(head="", cells=values)]


def is_short(columns: Sequence[Column], width: int) -> bool:
    """Return whether a table has two rows to twelve, and is at most `width` wide."""
    return 1 < len(columns[0].cells) <= _SHORT and sum(column.width for column in columns) - 2 <= width


def tables(columns: Sequence[Column], width: int) -> Iterator[RenderableType]:
    """Yield tables of all rows below one another, each as wide as a terminal allows; each begins with the first column."""
    key, taken = columns[0], list[Column]()
    for column in columns[1:]:
        if taken and sum(each.width for each in (key, *taken, column)) - 2 > width:
            yield table([key, *taken])
            yield Text()
            taken = []
        taken.append(column)
    yield table([key, *taken])


def table(columns: Sequence[Column]) -> Table:
    """Return a table with a line below its heads."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", show_edge=False)
    for column in columns:
        made.add_column(Text(column.head), justify="left" if column.left else "right", vertical="bottom", no_wrap=True)
    for row in range(len(columns[0].cells)):
        made.add_row(*(Text(column.cells[row], column.styles[row] if column.styles else "") for column in columns))
    return made


def render(parts: Iterable[RenderableType], *, width: int, colour: bool = False) -> str:
    """Render the parts below one another; strings are taken as they are, without markup. `colour` writes ANSI escapes."""
    file = io.StringIO()
    console = Console(
        force_jupyter=False,
        file=file,
        width=width,
        color_system="standard" if colour else None,
        force_terminal=colour,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
    for part in parts:
        console.print(part)
    pieces = re.split(f"({_COLOURS})", file.getvalue()) if colour else [file.getvalue()]
    text = "".join(piece if at % 2 else printable(piece) for at, piece in enumerate(pieces))
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def heading(title: str, note: str = "") -> Text:
    return Text.assemble("\n", (title, "bold"), (f"   {note}" if note else "", "dim"))


def worded(lines: Iterable[tuple[str, str]]) -> RenderableType:
    """Return lines that begin with a word each, and are broken beside it where they are long."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for word, text in lines:
        grid.add_row(Text(word, "bold"), Text(text))
    return grid


def listed_lines(lines: Iterable[str], mark: str = "", style: str = "") -> Iterator[RenderableType]:
    """Yield indented paragraphs, whose later lines begin below their first word."""
    for line in lines:
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_row(*([Text(mark, style)] if mark else []), Text(one_line(line), style))
        yield Padding(grid, (0, 0, 0, 2))
