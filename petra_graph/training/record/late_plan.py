"""The process that plans a run beside its training: `python -m petra_graph.training.record.late_plan DIRECTORY FOLDER`."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from attrs import evolve

from petra_graph.planning.check import check_spec
from petra_graph.planning.measure import measure
from petra_graph.planning.problem_collector import ProblemCollector
from petra_graph.training.record.run_plan import lowest_priority, write_plan

_MOST_SECONDS = 600
"""Of computing; a thousand stages take three minutes."""


def main(directory: Path, folders: Sequence[str], given: IO[bytes]) -> None:
    """Plan a run from its resolved specification and its placement.

    Args:
        directory: of the run.
        folders: modules of blocks may lie there.
        given: the placement and the number of training samples, as the run pickled them.

    Raises:
        SpecError, PluginError: as `Planner`.
        RunFailed: the disk refuses.
    """
    placement, training_samples = pickle.load(given)  # noqa: S301  from the process that started this one
    checked = check_spec(str(directory / "resolved.toml"), (), import_local=True, folders=folders)
    problems = ProblemCollector(loaded=checked.loaded)
    network = problems.require(measure, checked)
    problems.require(write_plan, directory, evolve(network, training_samples=training_samples), placement)


if __name__ == "__main__":
    lowest_priority(_MOST_SECONDS)
    main(Path(sys.argv[1]), sys.argv[2:], sys.stdin.buffer)
