"""The runs of a sweep: which of them there are, and how those that are not done are carried out, some at a time.

Nothing is noted down of a sweep: a run in the folder is that of a combination if it was resolved to the same specification. So the same
command trains no finished run again, continues those that have a checkpoint, and starts the others; another value adds runs.

Decision: a terminal's Ctrl-C reaches this process alone, which asks each run to stop; a run in a process group of its own hears it once. Where
this process is killed, the system asks the runs to stop (`stop_with_parent`).

Decision: runs at the same time are spread over the GPUs by what their processes see of them, in another order each, so that the first of two
devices is `cuda:0` in every run: of 4 GPUs and 2 runs at a time, 0,1,2,3 and 2,3,0,1.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import define, field

from petra_graph.cli.options_and_output import echo
from petra_graph.errors import RunFailed
from petra_graph.record.checkpoint import numbers
from petra_graph.record.recorded_run import read_run, run_directories
from petra_graph.record.run_directory import is_locked, locked, read_json
from petra_graph.runtime.system import PARENT, stop_requests

Table = Mapping[str, Any]
_LOOK_SECONDS = 0.1
_LAST_LINES = 3
"""Of a process's output, to say why it failed."""


@define(kw_only=True)
class Member:
    """The run of a combination, whether it has begun or not."""

    words: str
    overrides: Sequence[str]
    table: Table
    """The specification that it is resolved to, without name and folder."""
    folder: Path
    """Of the sweep."""
    directory: Path | None = None
    """Of the run, once it has begun."""
    code: int | None = field(default=None, init=False)
    """The exit code of its process, if that has ended here."""

    @property
    def output(self) -> Path:
        return self.folder / (re.sub(r"[^\w.=+-]+", ",", self.words)[:100] + ".txt")

    def find(self) -> Path | None:
        """Look for its run in the folder: the one that is done, or the latest one."""
        found = [one for one in run_directories(self.folder) if _table_of(one) == self.table]
        found.sort(key=lambda one: (status_of(one) == "done", one.name))
        self.directory = found[-1] if found else None
        return self.directory

    @property
    def status(self) -> str:
        """How it stands: "waiting", or as `RecordedRun.status`."""
        return "waiting" if self.directory is None else status_of(self.directory)

    def failure(self) -> str:
        """Return why it ended before it was done: as its summary says, or the last lines that its process printed."""
        summary = {} if self.directory is None else read_json(self.directory / "summary.json", dict) or {}
        if summary.get("error"):
            return str(summary["error"][0]).partition("\n")[0]
        lines = self.output.read_text(errors="replace").splitlines() if self.output.exists() else []
        return "\n".join(["it was killed" if self.directory else "it did not begin to train", *lines[-_LAST_LINES:]])


def comparable(table: Table) -> Table:
    """Return a resolved specification without its name and folder, which change no number."""
    run = {key: value for key, value in table["run"].items() if key != "directory"}
    return {**{key: value for key, value in table.items() if key != "name"}, "run": run}


def _table_of(directory: Path) -> Table | None:
    try:
        return comparable(tomllib.loads((directory / "resolved.toml").read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError):
        return None


def status_of(directory: Path) -> str:
    if is_locked(directory):
        return "running"
    return str((read_json(directory / "summary.json", dict) or {}).get("status", "killed"))


def carry_out(spec: str, members: Sequence[Member], at_once: int, processes: int) -> str | None:
    """Run what is not done: runs with a checkpoint continue, the others begin. Return the signal that has stopped it, or None.

    Raises:
        RunFailed: the folder cannot be written, or another process carries out this sweep, or trains one of its runs.
    """
    folder = members[0].folder
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        for one in members:
            one.find()
        if busy := [one for one in members if one.status == "running"]:
            raise RunFailed(f"another process trains {busy[0].directory}", "wait until it has ended, or stop it")
        waiting = [one for one in members if one.status != "done"]
        echo(f"{len(members)} runs, {len(members) - len(waiting)} of them done: {folder}", err=True)
        return _run_all(members, waiting, spec, at_once, processes)


def _run_all(members: Sequence[Member], waiting: list[Member], spec: str, at_once: int, processes: int) -> str | None:
    """Run those that wait, some at a time; a second Ctrl-C kills what is still running."""
    running: dict[int, tuple[Member, subprocess.Popen[bytes]]] = {}
    """By their place among those at the same time."""
    asked, insists, told = list[str](), list[bool](), False
    with stop_requests(asked.append, lambda: insists.append(True)):
        try:
            while running or (waiting and not asked):
                for place in range(at_once):
                    if waiting and place not in running and not asked:
                        one = waiting.pop(0)
                        running[place] = one, _start(one, spec, place, at_once, processes)
                if asked and (insists or not told):
                    told = True
                    _signal(running, signal.SIGKILL if insists else signal.SIGTERM)
                for place in [place for place, (_, process) in running.items() if process.poll() is not None]:
                    one, process = running.pop(place)
                    one.code = process.returncode
                    one.find()
                    done = sum(each.status == "done" for each in members)
                    echo(f"{done}/{len(members)} done   {_ended_line(one)}", err=True)
                time.sleep(_LOOK_SECONDS)
        finally:
            _signal(running, signal.SIGTERM)
            for _, process in running.values():
                process.wait()
    return asked[0] if asked else None


def _signal(running: Mapping[int, tuple[Member, subprocess.Popen[bytes]]], number: signal.Signals) -> None:
    for _, process in running.values():
        process.send_signal(number)


def _start(member: Member, spec: str, place: int, at_once: int, processes: int) -> subprocess.Popen[bytes]:
    """Start the process of a run, in a group of its own, both of whose streams are written to a file."""
    words = ["run", spec]
    if member.directory is not None and numbers(member.directory):
        words = ["run", "--resume", str(member.directory.absolute())]
    else:
        if member.directory is not None:
            shutil.rmtree(member.directory)  # it has nothing that could be continued
        for text in (*member.overrides, f"run.directory={member.folder.absolute()}"):
            words += ["--set", text]
    words += ["--processes", str(processes)] if processes > 1 else []
    variables = {**os.environ, PARENT: str(os.getpid()), **visible_gpus(place, at_once)}
    with member.output.open("ab") as output:
        return subprocess.Popen(  # noqa: S603  this interpreter, and words that are no shell's
            # -P: a `random.py` in the current folder must not be taken for the standard library's.
            [sys.executable, "-P", "-m", "petra_graph", *words],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def visible_gpus(place: int, at_once: int) -> Mapping[str, str]:
    """Return the variable that says which GPUs a process sees, and in which order; nothing where all runs see one.

    Args:
        place: of the run among those at the same time.
        at_once: how many these are.
    """
    import torch

    many, name = torch.cuda.device_count(), "CUDA_VISIBLE_DEVICES"
    if min(many, at_once) <= 1:
        return {}
    named = os.environ.get(name)
    gpus = named.split(",")[:many] if named else [str(index) for index in range(many)]
    first = place * max(1, many // at_once) % many
    return {name: ",".join([*gpus[first:], *gpus[:first]])}


def _ended_line(member: Member) -> str:
    if member.status == "done" and member.directory is not None:
        best = read_run(member.directory).best
        return f"{member.words}: done" + ("" if best is None else f"   best {best.metric} {best.value:.4g}")
    if member.status == "interrupted" or (member.directory is None and member.code in {-signal.SIGTERM, 130}):
        return f"{member.words}: interrupted"
    return f"{member.words}: failed: {member.failure().splitlines()[-1]}"
