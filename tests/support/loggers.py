"""The values of `metrics.jsonl` as callbacks have them, and specifications that name some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from petra_graph.plugins import Callback, Started
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


def started(callback: Callback, directory: Path, resumed_at: int | None = None) -> Callback:
    """A callback of a run that begins, or is resumed."""
    run: dict[str, Any] = dict.fromkeys(("epochs", "micro_batches", "batch", "accumulation", "stages", "parameters"), 1)
    callback.started(
        Started(name="run", directory=directory, method="petra", schedule="1f1b", resumed_at=resumed_at, **run)
    )
    return callback
