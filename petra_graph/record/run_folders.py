"""Which directories are runs, which of them is the latest, and when each began; a damaged one is a run as well."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from petra_graph.errors import SpecError
from petra_graph.record.checkpoint import repaired

LATEST = "latest"
RUNS = "runs"
"""The folder of runs, where a specification names no other."""
_STAMP = re.compile(r"(\d{8}T\d{6}Z)-.+")
_FILES = ("resolved.toml", "metrics.jsonl", "summary.json", "plan.json")


def find_run(name: str) -> Path:
    """Return a run's directory: the one that is named, or the latest one in `runs`.

    Raises:
        SpecError: there is none.
    """
    if name != LATEST:
        return Path(name).expanduser()
    found = run_directories(Path(RUNS))
    if not found:
        raise SpecError(f"there is no run in {RUNS}", "give the directory of a run")
    return max(found, key=began)


def no_run(name: str | Path) -> SpecError:
    return SpecError(f"there is no run directory {name}", "give the directory of a run, or `latest`")


def run_to_resume(name: str, parent: Path) -> Path:
    """Return a run's directory that has a checkpoint: the one that is named, or the latest one below `parent`.

    Raises:
        SpecError: there is none.
    """
    if name == LATEST:
        runs = [path for path in parent.glob("*") if path.is_dir() and repaired(path)]
        if not runs:
            raise SpecError(f"no run in {parent} has a checkpoint", "give the directory of a run")
        return max(runs, key=began)
    directory = Path(name).expanduser()
    if not directory.is_dir():
        raise no_run(name)
    if not repaired(directory):
        raise SpecError(
            f"{name} has no checkpoint", "runs write them where [checkpoint] has `every`, and when they are interrupted"
        )
    return directory


def run_directories(folder: Path) -> list[Path]:
    """Return the directories of runs in a folder, or the folder itself where it is one; a damaged one counts.

    Raises:
        SpecError: there is no such folder, or it cannot be read.
    """
    try:
        found = [folder] if _is_run(folder) else [path for path in folder.iterdir() if path.is_dir() and _is_run(path)]
    except OSError as error:
        message = f"cannot read the folder {folder}: {error.strerror or error}"
        raise SpecError(message, "name the folder that holds runs: `run.directory` of their specs") from None
    return sorted(found)


def began(directory: Path) -> datetime:
    """Return when a run began: as its directory's name says, or else when its first file was written."""
    if stamp := _STAMP.fullmatch(directory.name):
        try:
            return datetime.strptime(stamp[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        except ValueError:
            pass
    times = [path.stat().st_mtime for path in _present(directory)] or [directory.stat().st_mtime]
    return datetime.fromtimestamp(min(times), UTC)


def _is_run(path: Path) -> bool:
    return _STAMP.fullmatch(path.name) is not None or len(list(_present(path))) > 1


def _present(directory: Path) -> Iterator[Path]:
    return (path for name in _FILES if (path := directory / name).is_file())
