"""A run on several processes of this machine: the specification is checked here, the processes do the rest.

Decision: only the check step runs before processes start. They prepare as every run does, and one of them reports the
problems; preparing here first would make every correct run wait for it twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from petra_graph.compiler.spec_checks import check_processes
from petra_graph.errors import FailedOnAnotherProcess, Interrupted, SpecError
from petra_graph.planning.check import check_spec
from petra_graph.planning.problem_collector import ProblemCollector
from petra_graph.runtime.control.elastic_launch import launch
from petra_graph.runtime.control.rank_info import rank_info_from


def run_on_processes(
    path: str, overrides: Sequence[str], processes: int, flags: Sequence[str], environment: dict[str, str]
) -> None:
    """Train a specification; the processes print and write everything.

    Args:
        path: of the specification.
        overrides: values set on the command line.
        processes: how many, at least 2.
        flags: of the command line, to be passed on.
        environment: this process's own.

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
    checked = check_spec(path, overrides, import_local=True)
    partition, given = checked.spec.partition, checked.stages
    stages = len(given.stages) if given is not None else partition.stages
    assert isinstance(stages, int), "stages that are not given are a number"
    problems = ProblemCollector(loaded=checked.loaded)
    problems.require(check_processes, stages, max(1, processes // partition.replicas))
    options = [part for override in overrides for part in ("--set", override)]
    code = launch(["run", path, *options, *flags], processes)
    if code == Interrupted.exit_code:
        raise Interrupted
    if code:
        raise FailedOnAnotherProcess(code)
