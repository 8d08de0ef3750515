"""Modules and lines of each room of petra_graph, and of each distribution in plugins/, held to the budget of budget.toml.

    python tools/budget.py
    python tools/budget.py --write      make the budgets what the rooms have now

A room is a package directly under petra_graph; its loose modules are one more. A distribution in plugins/ is one room, without its
tests. All lines count. The exit code is 1 if a room is above its budget.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
BUDGET = Path(__file__).with_suffix(".toml")
HEAD = """\
# The most modules and lines that each room may have; `modules` in petra_graph are the modules directly under it. `make check` compares.
# A room that needs more gets it by a commit of its own, whose message says what the lines are for.
"""
Rooms = dict[str, dict[str, dict[str, int]]]


@click.command()
@click.option("--write", is_flag=True, help="Write the budgets anew: what the rooms have now.")
def main(write: bool) -> None:
    """Compare the modules and lines of each room with its budget."""
    found = rooms(ROOT)
    if write:
        BUDGET.write_text(HEAD + "".join(map(table, found, found.values())))
    for part, of in found.items():
        modules, lines = (sum(one[what] for one in of.values()) for what in ("modules", "lines"))
        click.echo(f"{part}: {modules} modules, {lines:,} lines")
    if faults := compared(found, tomllib.loads(BUDGET.read_text())):
        raise click.ClickException("\n".join(faults))


def table(part: str, of: dict[str, dict[str, int]]) -> str:
    rows = (f"{name} = {{ modules = {one['modules']}, lines = {one['lines']} }}\n" for name, one in of.items())
    return f"\n[{part}]\n{''.join(rows)}"


def rooms(root: Path) -> Rooms:
    """Count the modules and lines of each room."""
    found: Rooms = {part: defaultdict(lambda: {"modules": 0, "lines": 0}) for part in ("petra_graph", "plugins")}
    for part, of in found.items():
        for path in sorted((root / part).rglob("*.py")):
            within = path.relative_to(root / part).parts
            if part == "petra_graph" or "tests" not in within:
                room = of[within[0] if len(within) > 1 else "modules"]
                room["modules"] += 1
                room["lines"] += len(path.read_text().splitlines())
    return found


def compared(found: Rooms, budgets: Rooms) -> list[str]:
    """Return what is wrong: rooms above their budgets; a room or a budget without the other has none of it."""
    nothing, faults = {"modules": 0, "lines": 0}, []
    for part, of in found.items():
        for name in sorted({*of, *budgets[part]}):
            has, most = of.get(name, nothing), budgets[part].get(name, nothing)
            if has is nothing:
                faults.append(f"{part}/{name} is no more: take its budget out of tools/budget.toml")
            faults += [
                f"{part}/{name} has {has[what]:,} {what}, its budget in tools/budget.toml is {most[what]:,}"
                for what in ("modules", "lines")
                if has[what] > most[what]
            ]
    return faults


if __name__ == "__main__":
    main()
