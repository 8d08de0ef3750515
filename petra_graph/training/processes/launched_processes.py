"""A run on several processes of this machine: the specification is checked here, the processes do the rest.

Decision: only the check step runs before processes start. They prepare as every run does, and one of them reports the
problems; preparing here first would make every correct run wait for it twice.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from petra_graph.compiler.spec_checks import check_processes
from petra_graph.errors import FailedOnAnotherProcess, Interrupted, RunFailed, SpecError, printable
from petra_graph.planning.check.check_spec import check_spec
from petra_graph.planning.check.checked_spec import CheckedSpec
from petra_graph.planning.problem_collector import ProblemCollector
from petra_graph.record import checkpoint
from petra_graph.record.run_directory import run_directory
from petra_graph.runtime.control.elastic_launch import launch
from petra_graph.runtime.control.rank_info import rank_info_from
from petra_graph.runtime.control.stop_signals import numbers_of
from petra_graph.training.checkpoints.resumption import first_folders


def _check_stages(checked: CheckedSpec, processes: int) -> None:
    """Check that no process is left without a stage; where the number of stages is "auto", each process finds that out."""
    partition, given = checked.spec.partition, checked.stages
    stages = len(given.stages) if given is not None else partition.stages
    if isinstance(stages, int):
        problems = ProblemCollector(loaded=checked.loaded)
        problems.require(check_processes, stages, max(1, processes // partition.replicas))


def run_on_processes(
    path: str,
    overrides: Sequence[str],
    processes: int,
    flags: Sequence[str],
    environment: dict[str, str],
    *,
    resume: Path | None = None,
    max_restarts: int = 0,
    plan: str | None = None,
) -> Path | None:
    """Train a specification; the processes print and write everything. Return the run's directory.

    Args:
        path: of the specification.
        overrides: values set on the command line.
        processes: how many, at least 2.
        flags: of the command line, to be passed on.
        environment: this process's own.
        resume: the directory of a run, which is resumed there.
        plan: a saved plan, whose placement the run takes.
        max_restarts: how often the processes are started again, from the latest checkpoint, where the run has failed.

    Raises:
        SpecError, PluginError: before anything is started.
        Interrupted: a request to stop has arrived.
        FailedOnAnotherProcess: the run failed, and one of its processes has reported it.
        RunFailed: the run failed, and none of its processes could report it.
    """
    if rank_info_from(environment) is not None:
        raise SpecError(
            "--processes starts processes, and this is already one of several",
            hint="leave --processes out under torchrun",
        )
    if path == "-":
        raise SpecError("a spec from the standard input cannot be read by several processes", hint="write it to a file")
    checked = check_spec(path, overrides, import_local=True, folders=() if resume is None else first_folders(resume))
    _check_stages(checked, processes)
    options = [part for override in overrides for part in ("--set", override)]
    options += [] if plan is None else ["--plan", plan]
    own = False
    for restart in range(max_restarts + 1):
        what = [path, *options] if resume is None else ["--resume", str(resume), *([] if own else options)]
        ended = launch(["run", *what, *flags], processes, numbers_of(checked.spec.checkpoint.signal))
        created = None if ended.directory is None else run_directory(checked.spec.run.directory, ended.directory)
        if ended.code != RunFailed.exit_code or ended.asked or restart == max_restarts:
            break
        if resume is None and created is not None and checkpoint.repaired(created):
            resume, own = created, True  # its resolved.toml has the options and the placement
        elif resume is None and created is not None:  # the next attempt makes a directory of its own
            shutil.rmtree(created, ignore_errors=True)
        since = "the start" if resume is None else f"the latest checkpoint in {resume}"
        sys.stderr.write(printable(f"restart {restart + 1} of {max_restarts}, from {since}\n"))
    if ended.killed:
        message, hint = f"the processes were killed: {ended.killed}", "see whether the system ran out of memory"
        raise RunFailed(message, hint)
    if ended.code == Interrupted.exit_code:
        raise Interrupted(directory=resume or created)
    if ended.code:
        raise FailedOnAnotherProcess(ended.code)
    return resume or created
