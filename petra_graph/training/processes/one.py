"""The process of a run: the one that hosts all stages, of which `one_of_several` overrides whatever concerns the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor

from petra_graph.program.stage_program import StageProgram
from petra_graph.runtime.loop import Scheduler
from petra_graph.runtime.stop_signals import REQUESTS, stop_requests
from petra_graph.runtime.store import RunStore
from petra_graph.runtime.watchdog import Supervisor
from petra_graph.spec.load_spec import Given
from petra_graph.training.evaluation import Meters
from petra_graph.training.prepare import Prepared
from petra_graph.training.resume import Resumption
from petra_graph.training.run_record import UNTRAINED, RunRecord
from petra_graph.training.trainer import Trainer


class RunProcess:
    """The process of a run that hosts all stages, and has no other process to tell anything.

    It holds what the run has so far, which is needed if the run fails: None before the step that makes it.
    """

    rank, size = 0, 1
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

    def __init__(self) -> None:
        self.supervisor = Supervisor()

    @property
    def trained(self) -> Mapping[str, Any]:
        """How far the training came, as the summary has it; known in the process that records."""
        return UNTRAINED if self.trainer is None or self.record is None else self.trainer.summary()

    @property
    def records(self) -> bool:
        """Whether this process makes the run directory, and writes the manifests of checkpoints."""
        return True

    @contextmanager
    def control(self) -> Iterator[None]:
        """Within the context, an error of any kind is recorded once there is a run directory, and ends all processes."""
        try:
            yield
        except KeyboardInterrupt:
            if self.record is not None:
                self.record.summarise("interrupted", self.trained, weights=None)
            raise
        except Exception as error:
            if self.record is None:
                raise
            failure = self.record.record_failure(error, self.trained)
            if failure is error:
                raise
            raise failure from error
        finally:
            if self.record is not None:
                self.record.release()

    def stop_requests(self, more: Sequence[int]) -> AbstractContextManager[None]:
        """Within the context, these signals and the usual ones stop all stages before one forward; a second SIGINT stops at once."""

        def stop_at_once() -> NoReturn:
            raise KeyboardInterrupt

        return stop_requests(self.supervisor.ask, stop_at_once, heard=(*REQUESTS, *more))

    def resumption(self, directory: Path | None, given: Given, overrides: Iterable[str]) -> Resumption | None:
        """Return the checkpoint from which a run is resumed; every process has the same one."""
        return None if directory is None else Resumption.find(directory)

    def join(self, prepared: Prepared) -> Prepared:
        """Return the run, of whose data this process reads its part; all processes have agreed on it."""
        return prepared

    def open_directory(self, prepared: Prepared, resumption: Resumption | None) -> None:
        """Give the run its directory: the process that records creates one, or opens that of a resumed run, and tells the others.

        Raises:
            RunFailed: this process cannot see the directory, and checkpoints are to be written there.
        """
        self.record = RunRecord.opened(prepared, resumption)
        self.directory = self.record.directory

    def own_programs(self, prepared: Prepared) -> Sequence[StageProgram]:
        """Return the programs of the stages of this process, on its devices; all processes call it at the same time."""
        return prepared.programs

    def build(self, prepared: Prepared) -> Scheduler:
        """Build the stages of this process, and connect them with all others."""
        return Scheduler(
            prepared.executors(), supervisor=self.supervisor, policy=prepared.policy, global_clip=prepared.global_clip
        )

    def checkpoint_store(self) -> RunStore | None:
        """Return a connection for the thread that writes checkpoints; None if no other process has stages."""
        return None

    def blind(self) -> Sequence[str]:
        """Return the processes that cannot see the run directory."""
        return ()

    # --- called by the training loop ----------------------------------------------------------------------------------

    def exchange_meters(self, epoch: int, meters: Meters) -> None:
        """Merge the meters of other replicas' heads, or send this process's own."""

    def gather(self, name: str, own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the tensors of all stages in the process that records, under a name that is used once in a run."""
        return own

    def text_of_recorder(self, name: str, own: str) -> str:
        """Return a text of the process that records, under a name that is used once in a run."""
        return own

    def warn(self, texts: Sequence[str]) -> None:
        """Publish all warnings of this process so far, for the process that records."""

    def warnings(self) -> Sequence[str]:
        """Return the warnings that other processes have published, in the order of ranks."""
        return ()

    def publish(self, trained: Mapping[str, Any]) -> None:
        """Publish how far the training came, in case this process is killed."""

    # --- the end ------------------------------------------------------------------------------------------------------

    def gather_measured(self, own: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return what all processes have measured, in the order of ranks; [] in a process that does not record."""
        return [own]

    def leave(self, *, interrupted: bool) -> None:
        """End together with the other processes, when everything is written."""
