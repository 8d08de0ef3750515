"""The values of `metrics.jsonl` as loggers have them, and specifications that name some."""

from __future__ import annotations

from pathlib import Path

from tests.support.runs import events

Values = dict[str, list[tuple[int, float]]]
"""By name: steps and values, in the order in which they were recorded."""


def recorded(directory: Path) -> Values:
    found: Values = {}
    for event in events(directory):
        found.setdefault(event["name"], []).append((event["step"], event["value"]))
    return found


def named(kind: str, *names: str) -> str:
    """Arrays of tables with these names and no options."""
    return "".join(f'\n[[{kind}]]\nname = "{name}"\n' for name in names)
