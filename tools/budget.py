"""Lines of code by room of petra_graph, held to the budget of budget.toml.

    python tools/budget.py
    python tools/budget.py --write

A room is a package directly under petra_graph; its loose modules are one more. A line of code is one that has code: blank
lines, comments and docstrings do not count, so that none of them is saved on. The exit code is 1 where a room is above its
budget. `--write` makes the budgets what the rooms have now, and a tenth more.
"""

from __future__ import annotations

import ast
import io
import tokenize
import tomllib
from collections.abc import Mapping
from pathlib import Path

import click
from attrs import frozen

ROOT = Path(__file__).parents[1]
BUDGET = Path(__file__).with_suffix(".toml")
LOOSE = "modules"
"""The name of the room of loose modules."""
_HEAD = """\
# The most lines of code that each room of petra_graph may have; `modules` are those directly under it. `make check` compares.
# A room that needs more gets it by a commit of its own, whose message says what the lines are for.

[lines_of_code]
"""
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


@frozen(kw_only=True)
class Room:
    """What a room has."""

    modules: int
    code: int
    """Lines with code."""
    lines: int


@click.command()
@click.option("--write", is_flag=True, help="Write the budgets anew: what the rooms have now, and a tenth more.")
def main(write: bool) -> None:
    """Compare the lines of code of each room of petra_graph with its budget."""
    found = rooms(ROOT / "petra_graph")
    if write:
        BUDGET.write_text(
            _HEAD + "".join(f"{name} = {room.code + -(-room.code // 10)}\n" for name, room in found.items())
        )
    budgets = tomllib.loads(BUDGET.read_text())["lines_of_code"]
    click.echo(table(found, budgets))
    faults = compared(found, budgets)
    if faults:
        raise click.ClickException("\n".join(faults))


def rooms(package: Path) -> dict[str, Room]:
    """Count the modules and lines of each room, in the order of their names."""
    texts: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        within = path.relative_to(package)
        texts.setdefault(within.parts[0] if len(within.parts) > 1 else LOOSE, []).append(path.read_text())
    return {
        name: Room(modules=len(those), code=sum(map(lines_of_code, those)), lines=sum(map(_lines, those)))
        for name, those in sorted(texts.items())
    }


def _lines(text: str) -> int:
    return len(text.splitlines())


def lines_of_code(text: str) -> int:
    """Count the lines of a module that have code."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(found)


def table(found: Mapping[str, Room], budgets: Mapping[str, int]) -> str:
    """Return the rooms and their sums as a table."""
    rows = [("room", "modules", "code", "lines", "budget")]
    rows += [
        (name, str(room.modules), f"{room.code:,}", f"{room.lines:,}", f"{budgets.get(name, 0):,}")
        for name, room in found.items()
    ]
    modules, code, lines = (
        sum(getattr(room, what) for room in found.values()) for what in ("modules", "code", "lines")
    )
    rows.append(("all", str(modules), f"{code:,}", f"{lines:,}", f"{sum(budgets.values()):,}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([name.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))])
        for name, *cells in rows
    )


def compared(found: Mapping[str, Room], budgets: Mapping[str, int]) -> list[str]:
    """Return what is wrong: rooms above their budgets, and rooms and budgets without one another."""
    faults = [
        f"petra_graph/{name} has {room.code:,} lines of code, {room.code - budgets[name]:,} more than its budget of "
        f"{budgets[name]:,}: take lines out, or raise the budget in tools/budget.toml by a commit of its own that says why"
        for name, room in found.items()
        if name in budgets and room.code > budgets[name]
    ]
    faults += [f"petra_graph/{name} has no budget in tools/budget.toml" for name in found if name not in budgets]
    faults += [
        f"tools/budget.toml has a budget for {name}, and no such room is there" for name in budgets if name not in found
    ]
    return faults


if __name__ == "__main__":
    main()
