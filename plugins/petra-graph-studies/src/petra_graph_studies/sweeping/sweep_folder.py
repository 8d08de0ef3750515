"""A sweep's folder: what is to run, and what has become of it. The runs' directories say how they stand; nothing is noted twice.

runs/20260131T120000Z-NAME-sweep-3f9a1c/
    sweep.json         the spec, what is set in all runs, and the combinations
    spec.toml          of a specification that was made in code
    report.html        the comparison
    1-lr=0.1-seed=0/   of each combination
        output.txt     what its process printed
        20260131T120001Z-NAME-9c01d2/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from petra_graph.errors import PetraGraphError, SpecError
from petra_graph.program.json_shape import Later
from petra_graph.record.checkpoint import repair
from petra_graph.record.recorded_run import RecordedRun, read_run
from petra_graph.record.run_directory import is_locked, write_json
from petra_graph.record.run_files import read_json
from petra_graph.record.run_folders import SWEEP, began, run_directories
from petra_graph_studies.sweeping.combinations import Combination

_SHAPE: Mapping[str, Any] = {
    "spec": str,
    "working_directory": str,
    "overrides": [str],
    "processes": int,
    "max_restarts": int,
    "at_once": Later(int),
    "members": [
        {"folder": str, "overrides": [str], "group": int, "words": str, "group_words": str, "identity": str},
    ],
}
_LAST_LINES = 3
"""Of a process's output, to say why it failed."""


@frozen(kw_only=True)
class Member:
    """One run of a sweep, whether it has begun or not."""

    sweep: Path
    combination: Combination
    identity: str
    """Stands for the resolved specification of its group."""

    @property
    def words(self) -> str:
        return self.combination.words

    @property
    def folder(self) -> Path:
        return self.sweep / self.combination.folder

    @property
    def directory(self) -> Path | None:
        """The run's directory; None where it has none yet."""
        found = run_directories(self.folder) if self.folder.is_dir() else []
        return max(found, key=began, default=None)

    @property
    def output(self) -> Path:
        return self.folder / "output.txt"

    def status(self) -> str:
        """Return how it stands: "waiting", or as `RecordedRun.status`."""
        directory = self.directory
        if directory is None:
            return "waiting"
        if is_locked(directory):
            return "running"
        try:
            return str((read_json(directory / "summary.json", dict) or {}).get("status", "killed"))
        except SpecError:
            return "damaged"

    def resumes(self) -> Path | None:
        """Return the run's directory where it has a checkpoint from which it can continue."""
        directory = self.directory
        return directory if directory is not None and repair(directory) else None

    def recorded(self) -> RecordedRun | None:
        """Return the run; None where it has not begun, or is damaged."""
        directory = self.directory
        try:
            return None if directory is None else read_run(directory)
        except (PetraGraphError, OSError):
            return None

    def failure(self) -> str:
        """Return why it ended before it was done: as its summary says, or the last lines that its process printed."""
        run = self.recorded()
        if run is not None and run.summary.get("error"):
            return str(run.summary["error"][0]).partition("\n")[0]
        if run is not None and run.status == "interrupted":
            return "it was interrupted"
        try:
            lines = self.output.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        return "\n".join(["it was killed" if run is not None else "it did not begin to train", *lines[-_LAST_LINES:]])


@frozen(kw_only=True)
class Sweep:
    """The runs of a sweep, and what their processes are told."""

    folder: Path
    spec: str
    working_directory: str
    overrides: tuple[str, ...]
    """Of all runs."""
    processes: int
    max_restarts: int
    at_once: int = 1
    """How many train at a time."""
    members: tuple[Member, ...]

    @classmethod
    def read(cls, folder: Path) -> Sweep:
        """Read a sweep's folder.

        Raises:
            SpecError: there is no sweep, or its file is damaged.
        """
        held = read_json(folder / SWEEP, dict, _SHAPE)
        if held is None:
            raise SpecError(
                f"{folder} is not the folder of a sweep", "`petra-graph run SPEC --sweep KEY=A,B` makes one"
            )
        told = {key: held[key] for key in _SHAPE if key in held}
        members = []
        for one in told.pop("members"):
            identity = one.pop("identity")
            combination = Combination(**{**one, "overrides": tuple(one["overrides"])})
            members.append(Member(sweep=folder, combination=combination, identity=identity))
        return cls(**{**told, "overrides": tuple(told["overrides"])}, folder=folder, members=tuple(members))

    def write(self) -> None:
        """Write `sweep.json`, and make a folder for each run.

        Raises:
            RunFailed: the disk refuses.
        """
        held = attrs.asdict(self, filter=attrs.filters.exclude("folder", "members"))
        members = [{**attrs.asdict(one.combination), "identity": one.identity} for one in self.members]
        for one in self.members:
            one.folder.mkdir(exist_ok=True)
        write_json(self.folder / SWEEP, {**held, "members": members})

    def words(self, member: Member) -> Sequence[str]:
        """Return the words of the command line that start or continue a run."""
        resumed = member.resumes()
        shared = ["--processes", str(self.processes)] if self.processes > 1 else []
        shared += ["--max-restarts", str(self.max_restarts)] if self.max_restarts else []
        if resumed is not None:
            return ["run", "--resume", str(resumed.absolute()), *shared]
        given = [*self.overrides, *member.combination.overrides, f"run.directory={member.folder.absolute()}"]
        return ["run", self.spec, *(word for text in given for word in ("--set", text)), *shared]
