"""A sweep as a value that a notebook shows: its runs, and how they compare."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from petra_graph.api.finished_run import Changes, Run, threads_as_before
from petra_graph.api.spec_to_run import given_specification, refuse_classes_of_main

if TYPE_CHECKING:
    from petra_graph.spec.model import Spec


class Sweep:
    """The folder of a sweep, whatever became of its runs."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    @property
    def runs(self) -> list[Run]:
        """The runs that have begun, in the order of their combinations."""
        return [Run(directory) for member in self._read().members if (directory := member.directory) is not None]

    @property
    def failed(self) -> Mapping[str, str]:
        """Why runs failed or were killed, by what they have of the swept values: "lr=0.1, seed=0"."""
        members = self._read().members
        return {member.words: member.failure() for member in members if member.status() in ("failed", "killed")}

    def table(self, width: int = 120) -> str:
        """Return the mean and the spread over its seeds of each combination, the best first, as a terminal shows it."""
        from petra_graph_studies.sweeping.sweep_table import sweep_table

        return sweep_table(self._read(), width)

    def __repr__(self) -> str:
        from petra_graph_studies.sweeping.sweep_table import count_statuses

        statuses = count_statuses([member.status() for member in self._read().members])
        return "\n".join([f"{self.table()}{statuses}", f"results: {self.directory}"])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"

    def _read(self) -> Any:
        from petra_graph_studies.sweeping.sweep_folder import Sweep as OfFolder

        return OfFolder.read(self.directory)


def sweep(
    spec: Spec | str | Path | None = None,
    values: Mapping[str, Sequence[Any]] | None = None,
    changes: Changes | None = None,
    *,
    seeds: int | None = None,
    at_once: int | None = None,
    processes: int = 1,
    resume: Sweep | str | Path | None = None,
) -> Sweep:
    """Train a specification with all combinations of some values, as `petra-graph run --sweep` does, to the bit.

    Each run is a process of its own. One that fails does not stop the others; `failed` says why. An interruption ends all runs with
    a checkpoint, and `resume` continues the sweep: runs that are done stay.

    Args:
        spec: or the name of its file; None with `resume`.
        values: the values of each key, as in {"optimizer.options.lr": [0.1, 0.03]}.
        changes: values to set in all runs.
        seeds: how many for each combination, from the specification's seed on; None: that one alone.
        at_once: how many runs train at a time; None: one, or of a sweep that is resumed as many as before.
        processes: how many share the stages of each run.
        resume: a sweep to continue, or its folder.

    Raises:
        SpecError, PluginError, NoFeasiblePlan: before anything is started, with all problems of all combinations.
        RunFailed: the folder cannot be written, or another process carries out the sweep.
    """
    from petra_graph.spec.overrides import assignments
    from petra_graph_studies.sweeping.combinations import axes_of_values
    from petra_graph_studies.sweeping.sweep_run import Described, carry_out, reopen_sweep

    if (spec is None) == (resume is None):
        raise TypeError("give a specification, or `resume`: a continued sweep keeps its specification")
    for name, number in (("seeds", seeds), ("at_once", at_once), ("processes", processes)):
        if number is not None and (not isinstance(number, int) or number < 1):
            raise TypeError(f"{name} are a number from 1 on (got {number!r})")
    with threads_as_before():
        if resume is not None:
            if values or changes or seeds or processes > 1:
                raise TypeError("a resumed sweep keeps its runs: with `resume`, give only `at_once`")
            begun = reopen_sweep(resume.directory if isinstance(resume, Sweep) else Path(resume), at_once)
        else:
            if not values and seeds is None:
                raise TypeError('give `values`, as in {"optimizer.options.lr": [0.1, 0.03]}, or `seeds`')
            given = given_specification(spec)
            described = Described.of(given, assignments(changes), axes_of_values(values or {}), seeds)
            if not isinstance(given, str):
                refuse_classes_of_main(given)
            begun = described.begin(described.prepare(processes), processes, at_once=at_once or 1)
    carry_out(begun)
    return Sweep(begun.folder)
