"""Which directories are runs, which of them is the latest, and when each began; a damaged one is a run as well."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from petra_graph.errors import SpecError
from petra_graph.record.checkpoint import repair
from petra_graph.spec.overrides import parse_override

LATEST = "latest"
RUNS = "runs"
"""The folder of runs, where a specification names no other."""
_STAMP = re.compile(r"(\d{8}T\d{6}Z)-.+")
_FILES = ("resolved.toml", "metrics.jsonl", "summary.json", "plan.json")


def find_run(name: str) -> Path:
    """Return a run's directory: the one that is named, or that is alone in the folder that is named, or the latest one in `runs`.

    Raises:
        SpecError: the folder holds none.
    """
    if name != LATEST:
        return _alone_in(Path(name).expanduser())
    found = run_directories(Path(RUNS)) if Path(RUNS).exists() else []
    if not found:
        raise SpecError(f"there is no run in {RUNS}", "give the directory of a run")
    return max(found, key=began)


def no_run(name: str | Path) -> SpecError:
    return SpecError(f"there is no run directory {name}", "give the directory of a run, or `latest`")


def directory_to_resume(resume: str, overrides: Iterable[str]) -> Path:
    """Return the directory of the run to resume.

    Args:
        resume: the directory of a run, or "latest": the latest below `run.directory`, as set or "runs".
        overrides: `--set` assignments.

    Raises:
        SpecError: it does not exist, or is a run without a checkpoint.
    """
    given = [parse_override(text) for text in overrides]
    parents = [str(override.value) for override in given if override.keys == ("run", "directory")]
    return run_to_resume(resume, Path((parents or [RUNS])[-1]).expanduser())


def run_to_resume(name: str, parent: Path) -> Path:
    """Return a run's directory that has a checkpoint: the one that is named, or the latest one below `parent`.

    Raises:
        SpecError: the folder holds none.
    """
    if name == LATEST:
        found = [path for path in parent.glob("*") if path.is_dir() and repair(path)]
        if not found:
            raise SpecError(f"no run in {parent} has a checkpoint", "give the directory of a run")
        return max(found, key=began)
    directory = _alone_in(Path(name).expanduser())
    if not directory.is_dir():
        raise no_run(name)
    if not repair(directory):
        raise SpecError(
            f"{name} has no checkpoint", "runs write them where [checkpoint] has `every`, and when they are interrupted"
        )
    return directory


def run_directories(folder: Path) -> list[Path]:
    """Return the directories of runs in a folder, or the folder itself where it is a run; a damaged one counts.

    Raises:
        SpecError: there is no such folder, or it cannot be read.
    """
    try:
        found = [path for path in ([folder] if is_run(folder) else folder.iterdir()) if path.is_dir() and is_run(path)]
    except OSError as error:
        message = f"cannot read the folder {folder}: {error.strerror or error}"
        raise SpecError(message, "name the folder that holds runs: `run.directory` of their specs") from None
    return sorted(found)


def began(directory: Path) -> datetime:
    """Return when a run began: the second that its directory's name says, within it and otherwise when its first file was written."""
    times = [path.stat().st_mtime for path in _present(directory)] or [directory.stat().st_mtime]
    written = datetime.fromtimestamp(min(times), UTC)
    if stamp := _STAMP.fullmatch(directory.name):
        try:
            named = datetime.strptime(stamp[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        except ValueError:
            return written
        return written if written.replace(microsecond=0) == named else named
    return written


def _alone_in(folder: Path) -> Path:
    """Return the run that is the only one in a folder, or the folder itself."""
    if folder.is_dir() and not is_run(folder) and len(runs := run_directories(folder)) == 1:
        return runs[0]
    return folder


def is_run(path: Path) -> bool:
    """Whether this is a run's directory; a damaged one is."""
    return _STAMP.fullmatch(path.name) is not None or len(list(_present(path))) > 1


def _present(directory: Path) -> Iterator[Path]:
    return (path for name in _FILES if (path := directory / name).is_file())
