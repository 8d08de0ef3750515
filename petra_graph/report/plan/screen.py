"""Rendering for terminals of any width, the same bytes everywhere: nothing is asked of the environment.

Who prints knows the terminal: its width, and whether it shows colours.
"""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.text import Text

DEFAULT_WIDTH = 120


def render(parts: Iterable[RenderableType], *, width: int, colour: bool) -> str:
    """Render one below the other.

    Args:
        parts: what rich renders; strings are taken as they are, without markup.
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
    """Return a section's title, and what its numbers mean."""
    return Text.assemble("\n", (title, "bold"), (f"   {note}" if note else "", "dim"))
