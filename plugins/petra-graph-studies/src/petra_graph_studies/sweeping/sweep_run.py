"""A sweep from its combinations to its comparison: prepare all, make the folder, run what is not done, compare.

combinations --prepare_groups--> PreparedGroup --begin--> Sweep --carry_out--> runs --> table, report.html
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from petra_graph.errors import Interrupted, Problem, RunFailed, SpecError
from petra_graph.record.run_directory import create_run_directory, locked, write_text
from petra_graph.spec.load_spec import Given, dump, load
from petra_graph.spec.model import Spec
from petra_graph.spec.run_tables import RunSpec
from petra_graph.spec.source import STDIN
from petra_graph_studies.sweeping.combinations import Axis, Combination, combinations, seed_axis
from petra_graph_studies.sweeping.member_processes import MemberProcesses
from petra_graph_studies.sweeping.prepare_sweep import PreparedGroup, prepare_groups
from petra_graph_studies.sweeping.sweep_folder import Member, Sweep
from petra_graph_studies.sweeping.sweep_progress import SweepProgress, sweep_progress

PAGE = "report.html"


@frozen(kw_only=True)
class SweepResult:
    """The end of a sweep, whatever became of its runs."""

    sweep: Sweep
    failed: tuple[Problem, ...]
    """Why runs ended that are not done; those that a request to stop has ended are not among them."""
    interrupted: Interrupted | None
    report: dict[str, Any] | None
    """What `petra-graph report --json` prints of the runs that have begun; None if none has."""


@frozen(kw_only=True)
class Described:
    """A sweep as it was asked for."""

    given: Given
    overrides: Sequence[str]
    """Of all runs, KEY=VALUE."""
    combinations: Sequence[Combination]

    @classmethod
    def of(cls, given: Given, overrides: Sequence[str], axes: Sequence[Axis], seeds: int | None) -> Described:
        """Combine what is swept.

        Args:
            given: the specification.
            overrides: of all runs, KEY=VALUE.
            axes: what is swept.
            seeds: how many, from the seed of the specification on; None: that one alone.

        Raises:
            SpecError: a key is swept twice, or set as well.
        """
        if given == STDIN:
            raise SpecError("a spec from the standard input cannot be read by several processes", "write it to a file")
        axes = list(axes)
        if seeds is not None:
            run = load(given, overrides).values.get("run")
            first = run.get("seed") if isinstance(run, Mapping) else None
            axes.append(seed_axis(first if isinstance(first, int) else RunSpec().seed, seeds))
        return cls(given=given, overrides=overrides, combinations=combinations(axes, overrides))

    def prepare(self, processes: int = 1) -> list[PreparedGroup]:
        """Prepare all combinations, as `prepare_groups`."""
        return prepare_groups(self.given, self.overrides, self.combinations, processes)

    def begin(
        self, prepared: Sequence[PreparedGroup], processes: int = 1, max_restarts: int = 0, at_once: int = 1
    ) -> Sweep:
        """Make the folder of the sweep, whose groups are prepared.

        Raises:
            RunFailed: the disk refuses.
        """
        folder = create_run_directory(prepared[0].parent, f"{prepared[0].name}-sweep")
        spec = self.given if isinstance(self.given, str) else str((folder / "spec.toml").absolute())
        if isinstance(self.given, Spec):
            write_text(folder / "spec.toml", dump(self.given))
        members = [
            Member(sweep=folder, combination=one, identity=prepared[one.group].identity) for one in self.combinations
        ]
        sweep = Sweep(
            folder=folder,
            spec=spec,
            working_directory=os.getcwd(),  # noqa: PTH109  a string, as the file has it
            overrides=tuple(self.overrides),
            processes=processes,
            max_restarts=max_restarts,
            at_once=at_once,
            members=tuple(members),
        )
        sweep.write()
        return sweep


def reopen_sweep(folder: Path, at_once: int | None = None) -> Sweep:
    """Return a sweep that can be continued.

    Args:
        folder: of the sweep.
        at_once: how many runs train at a time; None: as many as when it began.

    Raises:
        SpecError, PluginError, NoFeasiblePlan: runs that begin anew are refused; or the specification gives other runs than when the sweep began.
    """
    sweep = Sweep.read(folder)
    sweep = evolve(sweep, at_once=at_once or sweep.at_once)
    firsts = {
        member.combination.group: member
        for member in sweep.members
        if member.status() not in ("done", "running") and member.resumes() is None
    }
    if not firsts:
        return sweep
    if not Path(sweep.working_directory).is_dir():
        raise SpecError(f"the sweep was begun in {sweep.working_directory}, which is not there", "begin another sweep")
    with chdir(sweep.working_directory):
        chosen = [member.combination for member in firsts.values()]
        prepared = prepare_groups(sweep.spec, sweep.overrides, chosen, sweep.processes)
    changed = [
        member.words for member, one in zip(firsts.values(), prepared, strict=True) if member.identity != one.identity
    ]
    if changed:
        message = f"{sweep.spec} gives other runs now than when the sweep began: {'; '.join(changed)}"
        raise SpecError(message, "undo what was changed in it or in what it names, or begin another sweep")
    return sweep


def carry_out(sweep: Sweep, progress: SweepProgress | None = None) -> SweepResult:
    """Run what is not done of a sweep: runs with a checkpoint continue, the others begin.

    Raises:
        SpecError: a run's directory is damaged.
        RunFailed: another process carries out this sweep, or one of its runs.
    """
    with locked(sweep.folder):
        _refuse_strangers(sweep)
        left = [member for member in sweep.members if member.status() != "done"]
        progress = progress or sweep_progress(sweep)
        processes = MemberProcesses(sweep, left)
        progress.begin()
        try:
            processes.carry_out(lambda: progress.look(processes.running), progress.ended)
        finally:
            progress.stop()
        interrupted = Interrupted(processes.asked[0], sweep.folder) if processes.asked else None
        begun = [str(directory) for member in sweep.members if (directory := member.directory) is not None]
        report = _write_comparison(begun, sweep.folder / PAGE)
    failed = [member for member in left if member.status() != "done" and member.folder in processes.codes]
    of_themselves = [member for member in failed if interrupted is None or member.status() == "failed"]
    return SweepResult(
        sweep=sweep,
        failed=tuple(_describe_failure(sweep, one) for one in of_themselves),
        interrupted=interrupted,
        report=report,
    )


def continues_with(sweep: Sweep) -> str:
    return f"petra-graph run --resume {shlex.quote(str(sweep.folder))}"


def _write_comparison(begun: Sequence[str], page: Path) -> dict[str, Any] | None:
    """Write the comparison; a damaged run among them has been named, and hinders no other."""
    from petra_graph.report.pages.runs_page import report_runs  # it imports matplotlib

    try:
        return report_runs(begun, page) if begun else None
    except SpecError:
        return None


def _describe_failure(sweep: Sweep, member: Member) -> Problem:
    return Problem(
        message=f"{member.words}: {member.status() if member.status() != 'waiting' else 'failed'}: {member.failure()}",
        hint=f"its output is in {member.output}; `{continues_with(sweep)}` tries again",
    )


def _refuse_strangers(sweep: Sweep) -> None:
    """Refuse a sweep with runs that another process trains, or that are damaged."""
    if running := [member for member in sweep.members if member.status() == "running"]:
        hint = "wait until it has ended, or stop it"
        raise RunFailed([Problem(message=f"another process trains {one.directory}", hint=hint) for one in running])
    if damaged := [member for member in sweep.members if member.status() == "damaged"]:
        hint = "restore its summary.json from a copy; or remove the directory, and this run begins again"
        raise SpecError([Problem(message=f"{one.directory} is damaged", hint=hint) for one in damaged])
