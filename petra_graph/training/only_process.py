"""The process of a run that hosts all stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NoReturn

from attrs import define, field
from torch import Tensor

from petra_graph.executor.stage import StageExecutor
from petra_graph.record.weights import weights_of
from petra_graph.runtime.control.signals import stop_requests
from petra_graph.runtime.scheduler.context import ProcessContext, SingleProcess
from petra_graph.runtime.scheduler.scheduler import Scheduler
from petra_graph.training.loop import Progress
from petra_graph.training.meters import Meters
from petra_graph.training.prepare import Prepared
from petra_graph.training.run_record import RunRecord


@define
class OnlyProcess:
    """A world of one."""

    size: int = 1
    supervisor: SingleProcess = field(factory=SingleProcess)
    record: RunRecord | None = None

    @contextmanager
    def control(self) -> Iterator[None]:
        """Record an error of any kind once there is a run directory."""
        try:
            yield
        except Exception as error:
            failure = error if self.record is None else self.record.failed(error)
            if failure is error:
                raise
            raise failure from error

    def join(self, prepared: Prepared) -> Prepared:
        """Return the run: this process reads all data."""
        return prepared

    def create_record(self, prepared: Prepared) -> RunRecord:
        """Create the run directory."""
        self.record = RunRecord.create(prepared)
        return self.record

    def executors(self, prepared: Prepared) -> Sequence[StageExecutor]:
        """Build all stages."""
        return prepared.executors()

    def scheduler(self, prepared: Prepared, executors: Sequence[StageExecutor]) -> Scheduler:
        """Connect the stages by local channels."""
        context = ProcessContext(supervisor=self.supervisor, policy=prepared.policy, global_clip=prepared.global_clip)
        return Scheduler(executors, context=context)

    def stop_requests(self) -> AbstractContextManager[None]:
        """Stop before the next forward at a first signal, with everything written; a second one stops at once."""
        return stop_requests(self._request, _stop_at_once)

    def _request(self, signal_name: str) -> None:
        self.supervisor.asked = signal_name

    def gather_weights(self, executors: Sequence[StageExecutor]) -> Mapping[str, Tensor]:
        """Return all weights."""
        return weights_of(pair for executor in executors for pair in executor.modules.items())

    def exchange_meters(self, epoch: int, meters: Meters) -> None:
        """Return: there is no other replica."""

    def publish(self, progress: Progress) -> None:
        """Return: there is no other process."""

    def leave(self) -> None:
        """Return: no other process waits."""


def _stop_at_once() -> NoReturn:
    raise KeyboardInterrupt
