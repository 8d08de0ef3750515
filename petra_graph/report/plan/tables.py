"""Tables that fit: wide ones are cut into several below each other, long ones leave out their middle and say so.

Columns come in groups, such as all of memory. A table takes as many groups as the terminal is wide; the next table starts again
with the columns that tell whose row it is.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Literal

from attrs import frozen
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from petra_graph.report.plan.units import NOTHING, Column, Scale, bounded, column_of, one_line

_GAP = 2
_BETWEEN = 4
"""Columns between a cell and the next, and between a table and the next."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_FULL = 40
"""So many rows are shown in full."""
_ENDS = 8
"""Of longer tables so many from each end."""


@frozen(kw_only=True)
class Field:
    """A column of a table, all its cells in order."""

    head: str
    cells: Sequence[str]
    group: str
    """Columns of one group stay together; those of group "" tell whose row it is."""
    left: bool = False
    styles: Sequence[str] = ()
    """One a row, where cells have colours."""

    @property
    def width(self) -> int:
        """The columns it needs."""
        return max(map(cell_len, [*self.head.split("\n"), *self.cells]))


def numbers_field(
    head: str, group: str, scales: Sequence[Scale], values: Sequence[float | None], unit: Column | None = None
) -> Field:
    """Return a column of numbers in one unit, which its head names; a None is unknown."""
    unit = unit or column_of(scales, [value for value in values if value is not None])
    cells = [NOTHING if value is None else unit.digits(value) for value in values]
    return Field(head=f"{head}\n{unit.unit}".rstrip(), group=group, cells=cells)


def words_field(head: str, group: str, texts: Sequence[str], width: int) -> Field:
    """Return a column of names, cut to a width."""
    return Field(head=head, cells=[bounded(one_line(text), width) for text in texts], group=group, left=True)


def bar(share: float, cells: int) -> str:
    """Draw a share of 1 as a bar, to an eighth of a cell."""
    full, rest = divmod(round(8 * cells * min(share, 1.0)), 8)
    return ("█" * full + _EIGHTHS[rest] * (rest > 0)).ljust(cells, "·")


def rows_shown(rows: int, whole: bool, notable: Iterable[int] = ()) -> list[int]:
    """Return which rows to show: all of a short table; of a long one both ends and the notable ones."""
    if whole or rows <= _FULL:
        return list(range(rows))
    return sorted({*range(_ENDS), *range(rows - _ENDS, rows), *notable})


def packed(fields: Sequence[Field], rows: Sequence[int], width: int) -> Iterator[Table]:
    """Return tables of these rows, each at most `width` wide where that can be."""
    keys = [field for field in fields if not field.group]
    taken: list[Field] = []
    first = True
    for _, members in groupby((field for field in fields if field.group), key=lambda field: field.group):
        group = list(members)
        if taken and _width([*(keys if first else keys[:1]), *taken, *group]) > width:
            yield _table(_fitting(keys, taken, width), rows)
            first, taken = False, []
        taken += group
    yield _table(_fitting(keys, taken, width), rows)


def _fitting(keys: Sequence[Field], fields: Sequence[Field], width: int) -> list[Field]:
    """Leave out all keys but the first where there is no room for them."""
    whole = [*keys, *fields]
    return whole if _width(whole) <= width else [*keys[:1], *fields]


def _width(fields: Sequence[Field]) -> int:
    return sum(field.width + _GAP for field in fields) - _GAP


def _table(fields: Sequence[Field], rows: Sequence[int]) -> Table:
    table = plain_table()
    for field in fields:
        justify: Literal["left", "right"] = "left" if field.left else "right"
        table.add_column(Text(field.head), justify=justify, vertical="bottom", no_wrap=True)
    before = -1
    for row in rows:
        if row - before > 1:
            _leave_out(table, fields, row - before - 1)
        before = row
        table.add_row(*(Text(field.cells[row], field.styles[row] if field.styles else "") for field in fields))
    return table


def _leave_out(table: Table, fields: Sequence[Field], many: int) -> None:
    table.add_row("⋮", Text(f"… {many} more" if len(fields) > 1 and fields[1].left else "", "dim"))


def side_by_side(tables: Sequence[Table], width: int) -> Iterator[Table]:
    """Return rows of tables beside each other, as many a row as fit."""
    console = Console(width=10 * width, file=io.StringIO())
    taken: list[Table] = []
    used = 0
    for table in tables:
        needed = Measurement.get(console, console.options, table).maximum
        if taken and used + _BETWEEN + needed > width:
            yield _row_of(taken)
            taken, used = [], 0
        used += needed + _BETWEEN * bool(taken)
        taken.append(table)
    yield _row_of(taken)


def _row_of(tables: Sequence[Table]) -> Table:
    row = Table.grid(padding=(0, _BETWEEN, 0, 0), pad_edge=False)
    row.add_row(*tables)
    return row


def plain_table() -> Table:
    """Return an empty table with a line below its heads."""
    return Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, _GAP - 1, 0, 0), header_style="bold", show_edge=False)
