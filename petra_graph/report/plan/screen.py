"""Rendering for terminals of any width, the same bytes everywhere: nothing is read from the environment.

The caller knows the terminal: its width, and whether it shows colours.
"""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from petra_graph.report.plan.units import one_line

DEFAULT_WIDTH = 120


def render(parts: Iterable[RenderableType], *, width: int, colour: bool) -> str:
    """Render the parts below one another.

    Args:
        parts: for rich; strings are taken as they are, without markup.
        width: of the terminal, in columns.
        colour: write ANSI escapes.
    """
    file = io.StringIO()
    console = Console(
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
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def heading(title: str, note: str = "") -> Text:
    """Return a section's title, and a note on its numbers."""
    return Text.assemble("\n", (title, "bold"), (f"   {note}" if note else "", "dim"))


def indented(text: str, mark: str = "", style: str = "") -> RenderableType:
    """Return an indented paragraph, whose later lines stand below its first word."""
    if not mark:
        return Padding(Text(one_line(text)), (0, 0, 0, 2))
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_row(Text(mark, style), Text(one_line(text), style))
    return Padding(grid, (0, 0, 0, 2))


def spaced(tables: Iterable[Table]) -> Iterable[RenderableType]:
    """Return tables with an empty line between them."""
    for place, table in enumerate(tables):
        if place:
            yield Text()
        yield table
