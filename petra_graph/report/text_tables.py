"""Text for terminals of any width: the same bytes everywhere, since nothing is read from the environment.

A table that is too wide is cut into several below each other. Columns come in groups, such as all of memory. A table takes as
many groups as the terminal is wide; the next table starts again with the columns that name the row.

Decision: rich lays out each table; `packed` decides what a table holds, since rich would cut or break the cells of a table
that is too wide, and has no columns that stay together.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Literal

from attrs import frozen
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from petra_graph.errors import printable
from petra_graph.units import NOTHING, ColumnUnit, Units, bounded, one_line

_GAP = 2
"""Characters between two columns."""
_COLOURS = r"\x1b\[[0-9;]*m"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_SHORT = 12
"""Up to this number of rows, a table is short."""


@frozen(kw_only=True)
class Column:
    """A column of a table, all its cells in order."""

    head: str
    cells: Sequence[str]
    group: str = ""
    """Columns of one group stay together; those of group "" name the row."""
    left: bool = False
    styles: Sequence[str] = ()
    """The style of each row, where cells have colours."""

    @property
    def width(self) -> int:
        """The characters that the column needs."""
        return max(map(cell_len, [*self.head.split("\n"), *self.cells]))


def number_column(
    head: str, units: Units, values: Sequence[float | None], group: str = "", unit: ColumnUnit | None = None
) -> Column:
    """Return a column of numbers in one unit, which its head names; a None is unknown."""
    unit = unit or units.column([value for value in values if value is not None])
    return text_column(f"{head}\n{unit.name}".rstrip(), values, group, unit.digits)


def direction_columns(
    heads: str, units: Units, rows: Iterable[dict[str, float]], group: str = "", keys: str = "{}"
) -> list[Column]:
    """Return the columns of a forward and of a backward number in one unit; `heads` and `keys` hold a {} for the word."""
    rows = list(rows)
    pairs = {verb: [row[keys.format(verb)] for row in rows] for verb in ("forward", "backward")}
    unit = units.column([value for values in pairs.values() for value in values])
    return [number_column(heads.format(verb), units, values, group, unit) for verb, values in pairs.items()]


def text_column(head: str, values: Iterable[Any], group: str = "", write: Callable[[Any], str] = str) -> Column:
    """Return a column of short texts; a None is unknown, or does not apply."""
    return Column(head=head, cells=[NOTHING if value is None else write(value) for value in values], group=group)


def name_column(head: str, names: Iterable[str], width: int, group: str = "", styles: Sequence[str] = ()) -> Column:
    """Return a column of names, cut to a width."""
    cells = [bounded(one_line(name), width) for name in names]
    return Column(head=head, cells=cells, group=group, left=True, styles=styles)


def pair_columns(title: str, pairs: Sequence[tuple[str, str]]) -> list[Column]:
    """Return a column of names under a title, and a column of their values; a total is emphasised."""
    names, values = zip(*pairs, strict=True)
    styles = ["bold" if name == "total" else "" for name in names]
    return [Column(head=title, cells=names, left=True, styles=styles), Column(head="", cells=values, styles=styles)]


def bar(share: float, cells: int) -> str:
    """Draw a share of 1 as a bar, to an eighth of a character."""
    full, rest = divmod(round(8 * cells * min(share, 1.0)), 8)
    return ("█" * full + _EIGHTHS[rest] * (rest > 0)).ljust(cells, "·")


def is_short(columns: Sequence[Column], width: int) -> bool:
    """Return whether a table has two rows to twelve, and is at most `width` wide."""
    return 1 < len(columns[0].cells) <= _SHORT and _width(columns) <= width


def packed(columns: Sequence[Column], width: int) -> Iterator[RenderableType]:
    """Return tables of all rows, an empty line between them, each at most `width` wide where that can be.

    A group that is too wide for a table of its own is divided.
    """
    keys = [column for column in columns if not column.group]
    tables: list[list[Column]] = [[]]
    for members in _members(columns, width - _width(keys[:1]) - _GAP):
        taken = tables[-1]
        if taken and _width([*(keys if len(tables) == 1 else keys[:1]), *taken, *members]) > width:
            tables.append(members)
        else:
            taken += members
    for place, taken in enumerate(tables):
        if place:
            yield Text()
        whole = [*keys, *taken]
        yield table(whole if _width(whole) <= width else [*keys[:1], *taken])


def _members(columns: Sequence[Column], width: int) -> Iterator[list[Column]]:
    """Yield the groups of columns, those wider than `width` a column at a time."""
    for _, group in groupby((column for column in columns if column.group), key=lambda column: column.group):
        members = list(group)
        yield from [members] if _width(members) <= width else [[column] for column in members]


def _width(columns: Sequence[Column]) -> int:
    return sum(column.width + _GAP for column in columns) - _GAP


def table(columns: Sequence[Column], rows: int | None = None, *, wraps: bool = False) -> Table:
    """Return a table with a line below its heads.

    Args:
        columns: at least one.
        rows: how many to show; None: all of them.
        wraps: break cells that are too long for the terminal, instead of cutting them.
    """
    made = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, _GAP - 1, 0, 0), header_style="bold", show_edge=False)
    for column in columns:
        justify: Literal["left", "right"] = "left" if column.left else "right"
        made.add_column(Text(column.head), justify=justify, vertical="top" if wraps else "bottom", no_wrap=not wraps)
    for row in range(len(columns[0].cells))[:rows]:
        made.add_row(*(Text(column.cells[row], column.styles[row] if column.styles else "") for column in columns))
    return made


def side_by_side(tables: Iterable[Table]) -> Columns:
    """Return tables next to each other, as many in a row as fit."""
    return Columns(tables, padding=(1, 4))


def render(parts: Iterable[RenderableType], *, width: int, colour: bool) -> str:
    """Render the parts below one another.

    Args:
        parts: what rich can render; strings are taken as they are, without markup.
        width: of the terminal, in columns.
        colour: write ANSI escapes.
    """
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
    parts_between = re.split(f"({_COLOURS})", file.getvalue()) if colour else [file.getvalue()]
    text = "".join(part if at % 2 else printable(part) for at, part in enumerate(parts_between))
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def heading(title: str, note: str = "") -> Text:
    return Text.assemble("\n", (title, "bold"), (f"   {note}" if note else "", "dim"))


def worded(lines: Iterable[tuple[str, str]]) -> RenderableType:
    """Return lines that begin with a word each, and are broken beside it where they are long."""
    grid = Table.grid(padding=(0, _GAP, 0, 0))
    for word, text in lines:
        grid.add_row(Text(word, "bold"), Text(text))
    return grid


def indented(text: str, mark: str = "", style: str = "") -> RenderableType:
    """Return an indented paragraph, whose later lines begin below its first word."""
    if not mark:
        return Padding(Text(one_line(text)), (0, 0, 0, 2))
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_row(Text(mark, style), Text(one_line(text), style))
    return Padding(grid, (0, 0, 0, 2))
