"""The plan of a run, as files of its directory; whatever happens to it, the training continues.

Decision: a run writes its plan only for people to read. Few stages are predicted before the training, in less than a
second, so that warnings come first. More of them would hold the training up for seconds, or minutes: another process
predicts them while the training runs (`python -m` with this module), of the lowest priority and with bounded time, and ends at the
latest with the run. It is a process and not a thread, since measuring costs would share the generators of random numbers with the
training.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from attrs import define, evolve, field

from petra_graph.errors import PetraGraphError
from petra_graph.planning.check.check_spec import check_spec
from petra_graph.planning.network.measure_network import MeasuredNetwork, measure
from petra_graph.planning.predict.predict_plan import predict
from petra_graph.planning.problem_collector import ProblemCollector
from petra_graph.program.placement import Placement
from petra_graph.program.plan_document import Document
from petra_graph.record.run_directory import TIMELINE, write_json, write_text
from petra_graph.report.plan.plan_contents import ticks_once_full
from petra_graph.spec.model import Spec

Figures = Mapping[str, Any]
"""Predicted figures for the summary; or "not planned" with reasons."""
PLAN = "plan.json"
MOST_STAGES = 32
"""More stages are predicted while the training runs; these take half a second."""
MOST_DRAWN = 64
"""More stages are not simulated for a picture: it takes time, and no reader could tell them apart."""
_TICKS = 5
"""The number of ticks of the simulated timeline that are kept for a report."""
_MODULE = "petra_graph.training.record.run_plan"
_MOST_SECONDS = 600
"""The longest that the other process may compute; a thousand stages take three minutes."""


def write_plan(directory: Path, network: MeasuredNetwork, placement: Placement) -> Document:
    """Predict a placement, write its plan, and return it."""
    drawn = len(placement.stages) <= MOST_DRAWN
    document = predict(network, placement).document(with_timeline=drawn, with_other_cuts=False)
    write_document(directory, document)
    return document


def write_document(directory: Path, document: Document) -> None:
    """Write a plan, and some ticks of its timeline."""
    blocks = ticks_once_full(document, _TICKS)
    write_json(directory / PLAN, document | {"timeline": []})
    write_text(directory / TIMELINE, json.dumps(blocks) + "\n")


def figures_of(document: Document, spec: Spec) -> Figures:
    """Return the figures of a plan that a summary has."""
    return {
        "samples_per_second": round(document["timing"]["samples_per_second"], 1),
        "memory_bytes": document["totals"]["bytes"]["total"],
        "from": "profile" if spec.partition.profile else "data sheet",
    }


def not_planned(error: Exception | str) -> Figures:
    if isinstance(error, PetraGraphError):
        return {"not planned": [str(problem) for problem in error.problems]}
    return {"not planned": [error if isinstance(error, str) else f"{type(error).__name__}: {error}"]}


@define
class LatePlan:
    """A plan that another process makes while the training runs."""

    _directory: Path
    _spec: Spec
    _process: subprocess.Popen[bytes]
    _errors: IO[bytes]
    _found: Figures | None = field(default=None, init=False)

    @classmethod
    def begin(cls, directory: Path, network: MeasuredNetwork, placement: Placement, folders: Sequence[str]) -> LatePlan:
        """Start the process, which reads the run's resolved specification; modules of blocks may lie in `folders`."""
        errors = tempfile.TemporaryFile()  # noqa: SIM115  the process and `figures` share it
        with tempfile.TemporaryFile() as given:  # a pipe would not hold it until the process reads
            pickle.dump((placement, network.training_samples), given)
            given.seek(0)
            process = subprocess.Popen(  # noqa: S603  this Python, and paths of the run
                [sys.executable, "-m", _MODULE, str(directory), *folders],
                stdin=given,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is the run's
            )
        return cls(directory, network.spec, process, errors)

    def figures(self) -> Figures:
        """Return the plan's figures if it has been written, and end the process otherwise: the run is over."""
        if self._found is None:
            self._found = self._ended()
            self._errors.close()
        return self._found

    def _ended(self) -> Figures:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
            shown = f"petra-graph plan {self._directory / 'resolved.toml'}"
            return not_planned(
                f"the plan was not ready when the run ended, since the stages are many; `{shown}` makes it"
            )
        try:
            if self._process.returncode == 0:
                return figures_of(json.loads((self._directory / PLAN).read_text(encoding="utf-8")), self._spec)
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
            return not_planned(lines[-1] if lines else f"planning ended with exit code {self._process.returncode}")
        except Exception as error:  # noqa: BLE001  a plan never ends a run
            return not_planned(error)


def _lowest_priority(seconds: int) -> None:
    """Give other processes priority, and end this one after this many seconds of computing."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        os.nice(19)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def _plan_beside(directory: Path, folders: Sequence[str], given: IO[bytes]) -> None:
    """Plan a run from its resolved specification, and from what the run has pickled: its placement, and its samples' number."""
    placement, training_samples = pickle.load(given)  # noqa: S301  from the process that started this one
    checked = check_spec(str(directory / "resolved.toml"), (), import_local=True, folders=folders)
    problems = ProblemCollector(loaded=checked.loaded)
    network = problems.require(measure, checked)
    problems.require(write_plan, directory, evolve(network, training_samples=training_samples), placement)


if __name__ == "__main__":
    _lowest_priority(_MOST_SECONDS)
    _plan_beside(Path(sys.argv[1]), sys.argv[2:], sys.stdin.buffer)
