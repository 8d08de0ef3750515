"""What a run was resumed with that was other than before: its first specification and code do not tell all of its training then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from petra_graph.record.run_directory import write_json
from petra_graph.record.run_files import read_json

FILE = "history.json"
_SHAPE = {"resumes": [{"at": int, "updates": int, "changed": [str]}]}


@frozen(kw_only=True)
class ChangedResume:
    """A resume with changes."""

    at: int
    """The forward before which the run continued."""
    updates: int
    """The updates of the head's stage before it."""
    changed: Sequence[str]
    """As in "run.epochs: 3 then, 4 now"."""


def read_history(directory: Path) -> list[ChangedResume]:
    """Return a run's resumes with changes, the first one first.

    Raises:
        SpecError: the file is damaged.
    """
    found: dict[str, Any] = read_json(directory / FILE, dict, _SHAPE) or {"resumes": []}
    return [ChangedResume(at=one["at"], updates=one["updates"], changed=one["changed"]) for one in found["resumes"]]


def add_to_history(directory: Path, now: ChangedResume) -> None:
    """Write down a resume with changes; what was changed behind it, and then lost, began to count here."""
    before = [
        one if one.at <= now.at else ChangedResume(at=now.at, updates=now.updates, changed=one.changed)
        for one in read_history(directory)
    ]
    write_json(directory / FILE, {"resumes": [asdict(one) for one in [*before, now]]})
