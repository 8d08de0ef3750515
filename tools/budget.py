"""Modules and lines by room of petra_graph, and of each distribution in plugins/, held to the budget of budget.toml.

    python tools/budget.py
    python tools/budget.py --write

A room is a package directly under petra_graph; its loose modules are one more. A distribution in plugins/ is one room: its
sources, without its tests. All lines count, blank ones and docstrings as well. The exit code is 1 if a room is above its
budget. `--write` makes the budgets what the rooms have now.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import click
from attrs import asdict, frozen

ROOT = Path(__file__).parents[1]
BUDGET = Path(__file__).with_suffix(".toml")
LOOSE = "modules"
"""The name of the room of loose modules."""
CORE, PLUGINS = "petra_graph", "plugins"
_HEAD = """\
# The most modules and lines that each room may have; `modules` in petra_graph are the modules directly under it. `make check` compares.
# A room that needs more gets it by a commit of its own, whose message says what the lines are for.
"""


@frozen(kw_only=True)
class Room:
    """What a room has, or may have."""

    modules: int
    lines: int


@click.command()
@click.option("--write", is_flag=True, help="Write the budgets anew: what the rooms have now.")
def main(write: bool) -> None:
    """Compare the modules and lines of each room with its budget."""
    found = rooms(ROOT)
    if write:
        BUDGET.write_text(as_toml(found))
    budgets = {
        f"{part}/{name}": Room(**budget)
        for part, budgets in tomllib.loads(BUDGET.read_text()).items()
        for name, budget in budgets.items()
    }
    click.echo(table(found, budgets))
    faults = compared(found, budgets)
    if faults:
        raise click.ClickException("\n".join(faults))


def rooms(root: Path) -> dict[str, Room]:
    """Count the modules and lines of each room: "petra_graph/executor", "plugins/petra-graph-vision"."""
    files: dict[str, list[Path]] = {}
    for path in sorted((root / CORE).rglob("*.py")):
        within = path.relative_to(root / CORE)
        files.setdefault(f"{CORE}/{within.parts[0] if len(within.parts) > 1 else LOOSE}", []).append(path)
    for path in sorted((root / PLUGINS).glob("*/**/*.py")):
        if {"tests", "tools"} & set(path.relative_to(root / PLUGINS).parts):
            continue
        files.setdefault(f"{PLUGINS}/{path.relative_to(root / PLUGINS).parts[0]}", []).append(path)
    return {
        name: Room(modules=len(paths), lines=sum(len(path.read_text().splitlines()) for path in paths))
        for name, paths in sorted(files.items())
    }


def as_toml(found: Mapping[str, Room]) -> str:
    text, last = _HEAD, ""
    for name, room in found.items():
        part, _, short = name.partition("/")
        text += f"\n[{part}]\n" * (part != last)
        text += f"{short} = {{ modules = {room.modules}, lines = {room.lines} }}\n"
        last = part
    return text


def table(found: Mapping[str, Room], budgets: Mapping[str, Room]) -> str:
    """Return the rooms and their sums as a table."""
    rows = [("room", "modules", "of", "lines", "of")]
    rows += [_row(name, room, budgets.get(name)) for name, room in found.items()]
    for part in (CORE, PLUGINS):
        here = [{name: room for name, room in each.items() if name.startswith(part)} for each in (found, budgets)]
        rows.append(_row(f"all of {part}", *(_sum(each.values()) for each in here)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([name.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))])
        for name, *cells in rows
    )


def _row(name: str, room: Room, budget: Room | None) -> tuple[str, str, str, str, str]:
    most = budget or Room(modules=0, lines=0)
    return name, f"{room.modules}", f"{most.modules}", f"{room.lines:,}", f"{most.lines:,}"


def _sum(each: Iterable[Room]) -> Room:
    counted = list(each)
    return Room(modules=sum(room.modules for room in counted), lines=sum(room.lines for room in counted))


def compared(found: Mapping[str, Room], budgets: Mapping[str, Room]) -> list[str]:
    """Return what is wrong: rooms above their budgets, and rooms and budgets without one another."""
    faults = [
        f"{name} has {has:,} {what}, {has - most:,} more than its budget of {most:,}: take some out, or raise the budget in "
        "tools/budget.toml by a commit of its own that says why"
        for name, room in found.items()
        if name in budgets
        for what, has in asdict(room).items()
        if has > (most := getattr(budgets[name], what))
    ]
    faults += [f"{name} has no budget in tools/budget.toml" for name in found if name not in budgets]
    faults += [
        f"tools/budget.toml has a budget for {name}, and no such room is there" for name in budgets if name not in found
    ]
    return faults


if __name__ == "__main__":
    main()
