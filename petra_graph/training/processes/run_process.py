"""The process of a run: what a process that hosts all stages and one of several do each in their own way.

`HostOfAll` and `OneOfSeveral` implement it. What a run has by now is one value, which `run` hands on from step to step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from attrs import frozen

from petra_graph.program.stage_program import StageProgram
from petra_graph.runtime.control.run_store import RunStore
from petra_graph.runtime.scheduler.process_context import Supervisor
from petra_graph.runtime.scheduler.scheduler import Scheduler
from petra_graph.spec.load_spec import Given
from petra_graph.training.checkpoints.resumption import Resumption
from petra_graph.training.loop.peers import Peers, Progress
from petra_graph.training.loop.trainer import Trainer
from petra_graph.training.prepared_run import Prepared
from petra_graph.training.record.run_record import RunRecord
from petra_graph.training.start_reporter import StartReporter


@frozen(kw_only=True)
class RunSoFar:
    """What a run has so far in this process, as it is needed when the run fails; None before the step that makes it."""

    prepared: Prepared | None = None
    ranks: Sequence[int] = ()
    """The rank of each stage of the first replica, once the processes have agreed on the run."""
    directory: Path | None = None
    """The run's directory, once this process knows it."""
    record: RunRecord | None = None
    """The run's record, in the process that records."""
    scheduler: Scheduler | None = None
    """The scheduler, once its stages are built and all processes are ready to train."""
    trainer: Trainer | None = None

    @property
    def trained(self) -> Trainer | Progress:
        """How far the training came, as the process that records knows."""
        return Progress() if self.trainer is None or self.record is None else self.trainer


class RunProcess(Peers, Protocol):
    """This process of a run."""

    rank: int
    size: int
    so_far: RunSoFar
    """`run` hands on a new one after each step."""

    @property
    def supervisor(self) -> Supervisor: ...

    @property
    def records(self) -> bool:
        """Whether this process makes the run directory, and writes the manifests of checkpoints."""
        ...

    def control(self) -> AbstractContextManager[None]:
        """Within the context, an error of any kind is recorded once there is a run directory, and ends all processes."""
        ...

    def stop_requests(self, more: Sequence[int]) -> AbstractContextManager[None]:
        """Within the context, these signals and the usual ones stop all stages before one forward."""
        ...

    def start_reporter(self) -> StartReporter: ...

    def resumption(self, directory: Path | None, given: Given, overrides: Iterable[str]) -> Resumption | None:
        """Return the checkpoint from which a run is resumed; every process has the same one."""
        ...

    def join(self, prepared: Prepared) -> Prepared:
        """Return the run, of whose data this process reads its part; all processes have agreed on it."""
        ...

    def open_directory(self, prepared: Prepared, resumption: Resumption | None) -> RunSoFar:
        """Return the run with its directory: created by the process that records, or that of a resumed run."""
        ...

    def share_directory(self) -> None:
        """Tell the other processes the directory, and whether this one sees it, as it must where checkpoints are written."""

    def own_programs(self, prepared: Prepared) -> Sequence[StageProgram]:
        """Return the programs of the stages of this process, on its devices; all processes call it at the same time."""
        ...

    def build(self, prepared: Prepared) -> Scheduler:
        """Build the stages of this process, and connect them with all others."""
        ...

    def checkpoint_store(self) -> RunStore | None:
        """Return a connection for the thread that writes checkpoints; None where no other process has stages."""
        ...

    def blind(self) -> Sequence[str]:
        """Return the processes that cannot see the run directory."""
        ...

    def gather_measured(self, own: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return what all processes have measured, in the order of ranks; [] in a process that does not record."""
        ...

    def leave(self, *, interrupted: bool) -> None:
        """End together with the other processes, when everything is written."""
