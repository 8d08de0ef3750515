"""The process of a run: the one that hosts all stages, of which `OneOfSeveral` overrides what takes several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor

from petra_graph.runtime.loop import Scheduler
from petra_graph.runtime.stage_io import MicroBatch
from petra_graph.runtime.stop_signals import REQUESTS, stop_requests
from petra_graph.runtime.store import RunStore
from petra_graph.runtime.watchdog import Supervisor
from petra_graph.spec.load_spec import Given
from petra_graph.training.evaluation import Meters
from petra_graph.training.prepare import Prepared
from petra_graph.training.resume import Resumption
from petra_graph.training.run_record import UNTRAINED, RunRecord
from petra_graph.training.trainer import Trainer


class _Values(dict[str, Any]):
    """What a `RunStore` is among several processes."""

    set = dict.__setitem__


class RunProcess:
    """The process of a run that hosts all stages; what processes tell each other, it tells itself.

    It holds what the run has so far, which is needed if the run fails: None before the step that makes it.
    """

    rank, size, replica = 0, 1, 0
    pipeline: Sequence[int] = (0,)
    """The ranks of the stages of this process's replica."""
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
        self.store: RunStore | _Values = _Values()

    @property
    def trained(self) -> Mapping[str, Any]:
        """How far the training came, as the summary has it; known in the process that records."""
        return UNTRAINED if self.trainer is None or self.record is None else self.trainer.summary()

    @property
    def hosts_head(self) -> bool:
        return self.pipeline[-1] == self.rank

    @property
    def records(self) -> bool:
        """Whether this process hosts the head of the first replica: it makes the run directory, and writes the manifests of checkpoints."""
        return self.hosts_head and self.replica == 0

    @property
    def others(self) -> Sequence[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    def wait(self, name: str) -> Any:
        """Return a value that another process sets."""
        return self.store.get(name)

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

    def build(self, prepared: Prepared) -> Scheduler:
        """Build the stages of this process, and connect them with all others; all processes call it at the same time."""
        return Scheduler(
            prepared.executors(), supervisor=self.supervisor, policy=prepared.policy, global_clip=prepared.global_clip
        )

    def another_connection(self) -> RunStore | _Values:
        """Return the store for a thread."""
        return self.store

    def blind(self) -> Sequence[str]:
        """Return the processes that cannot see the run directory."""
        return ()

    # --- called by the training loop ----------------------------------------------------------------------------------

    def compared(self, epoch: int, batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        """Return the micro-batches of an epoch, whose targets are those of the samples that the process of the first stage reads.

        Raises:
            RunFailed: the first targets are others.
        """
        return batches

    def exchange_meters(self, epoch: int, meters: Meters) -> None:
        """Merge the meters of other replicas' heads into those of the first replica's."""
        if self.hosts_head and self.replica > 0:
            self.store.set(f"meters/{epoch}/{self.replica}", meters.sums())
        elif self.hosts_head:
            for other in range(1, self.size // len(set(self.pipeline))):
                meters.merge(self.wait(f"meters/{epoch}/{other}"))

    def gather(self, name: str, own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the tensors of all stages in the process that records, under a name that is used once in a run; elsewhere its own."""
        return own

    def text_of_recorder(self, name: str, own: str) -> str:
        """Return a text of the process that records, under a name that is used once in a run."""
        if self.records:
            self.store.set(name, own)
        return own if self.records else str(self.wait(name))

    def publish(self, trained: Mapping[str, Any]) -> None:
        """Publish how far the training came, in case this process is killed: another process then writes the summary."""
        if self.record is not None:
            self.store.set("trained", trained)

    # --- the end ------------------------------------------------------------------------------------------------------

    def gather_measured(self, own: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return what all processes have measured, in the order of ranks; [] in a process that does not record."""
        self.store.set(f"measured/{self.rank}", own)
        return [self.wait(f"measured/{rank}") for rank in range(self.size)] if self.records else []

    def leave(self, *, interrupted: bool) -> None:
        """End together with the other processes, when everything is written."""
