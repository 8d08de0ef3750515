"""The processes of a sweep's runs, some at a time.

Decision: a terminal's Ctrl-C reaches this process alone, which asks each run to stop; a run in a process group of its own
hears it once, whoever sends it. Where this process is killed, the system asks the runs to stop (`stop_with_parent`).

Decision: runs at the same time are spread over the GPUs by what their processes see of them, in another order each:

    4 GPUs, 2 at a time     0,1,2,3   2,3,0,1

So the first of two devices is `cuda:0` in every run, its records are those of a single run, and none lacks a device.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from petra_graph.record.run_directory import is_locked
from petra_graph.runtime.control.stop_signals import PARENT, stop_requests
from petra_graph_studies.sweeping.sweep_folder import Member, Sweep

_LOOK_SECONDS = 0.1
_VISIBLE = "CUDA_VISIBLE_DEVICES"


class MemberProcesses:
    """The processes of the runs that are not done."""

    def __init__(self, sweep: Sweep, members: Sequence[Member]) -> None:
        self.codes: dict[Path, int] = {}
        """The exit codes of those that have ended, by the folders of their runs."""
        self.asked: list[str] = []
        """The signals that have asked the sweep to stop."""
        self._sweep = sweep
        self._waiting = deque(members)
        self._running: dict[Path, tuple[Member, subprocess.Popen[bytes]]] = {}
        self._places: dict[Path, int] = {}
        """Which of those at the same time a run is, counted from 0."""

    @property
    def running(self) -> list[Path]:
        """The folders of the runs that have a process now."""
        return list(self._running)

    def carry_out(self, look: Callable[[], None], ended: Callable[[Member, int], None]) -> None:
        """Run all, or stop where a signal asks for that; a second Ctrl-C kills what is still running.

        Args:
            look: called ten times a second.
            ended: called with each run that has ended, and its exit code.
        """
        told: set[Path] = set()
        insists: list[bool] = []
        with stop_requests(self.asked.append, lambda: insists.append(True)):
            try:
                while self._running or (self._waiting and not self.asked):
                    while self._waiting and len(self._running) < self._sweep.at_once and not self.asked:
                        self._start(self._waiting.popleft())
                    if self.asked:
                        self._signal(signal.SIGTERM, but=told)
                    if insists:
                        self._signal(signal.SIGKILL)
                    for member in self._ended():
                        ended(member, self.codes[member.folder])
                    look()
                    time.sleep(_LOOK_SECONDS)
            finally:
                self._signal(signal.SIGTERM)
                for _, process in self._running.values():
                    process.wait()

    def _start(self, member: Member) -> None:
        words = self._sweep.words(member)
        directory = member.directory
        if directory is not None and "--resume" not in words and not is_locked(directory):
            shutil.rmtree(
                directory
            )  # it has nothing that could be continued; its next attempt has a directory of its own
        taken = {self._places[folder] for folder in self._running}
        place = self._places[member.folder] = min(set(range(self._sweep.at_once)) - taken)
        with member.output.open("ab") as output:
            # -P: a `random.py` in the current folder must not be taken for the standard library's.
            self._running[member.folder] = (
                member,
                start_process(
                    [sys.executable, "-P", "-m", "petra_graph", *words],
                    {**os.environ, PARENT: str(os.getpid()), **visible_gpus(place, self._sweep.at_once)},
                    output.fileno(),
                    self._sweep.working_directory,
                ),
            )

    def _ended(self) -> list[Member]:
        found = []
        for folder, (member, process) in list(self._running.items()):
            if (code := process.poll()) is not None:
                del self._running[folder]
                self.codes[folder] = code
                found.append(member)
        return found

    def _signal(self, number: signal.Signals, but: set[Path] | None = None) -> None:
        """Signal the processes; where `but` is given, each of them once."""
        for folder, (_, process) in self._running.items():
            if but is None or folder not in but:
                process.send_signal(number)
            if but is not None:
                but.add(folder)


def visible_gpus(place: int, at_once: int) -> Mapping[str, str]:
    """Return the variable that says which GPUs a process sees, and in which order; nothing where all runs see one.

    Args:
        place: of the run among those at the same time.
        at_once: how many these are.
    """
    many = torch.cuda.device_count()
    if min(many, at_once) <= 1:
        return {}
    named = os.environ.get(_VISIBLE)
    gpus = named.split(",")[:many] if named else [str(index) for index in range(many)]
    first = place * max(1, many // at_once) % many
    return {_VISIBLE: ",".join([*gpus[first:], *gpus[:first]])}


def start_process(
    words: Sequence[str], variables: Mapping[str, str], output: int, folder: str
) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own, both of whose streams are written to a file."""
    return subprocess.Popen(  # noqa: S603  this interpreter, and words that are no shell's
        words,
        env=variables,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
