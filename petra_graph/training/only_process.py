"""The process of a run in one process: a world of one."""

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
from petra_graph.training.loop import Peers
from petra_graph.training.prepare import Prepared
from petra_graph.training.run_record import RunRecord


@define
class OnlyProcess(Peers):
    """This process hosts all stages; `Worker` has the same methods."""

    size: int = 1
    supervisor: SingleProcess = field(factory=SingleProcess)
    record: RunRecord | None = None

    @contextmanager
    def control(self) -> Iterator[None]:
        """Within the context, record errors of any kind once there is a run directory."""
        try:
            yield
        except Exception as error:
            failure = error if self.record is None else self.record.failed(error)
            if failure is error:
                raise
            raise failure from error

    def stop_requests(self) -> AbstractContextManager[None]:
        """Within the context, a first signal stops before the next forward, and a second one stops at once."""
        return stop_requests(self._request, _stop_at_once)

    def _request(self, signal_name: str) -> None:
        self.supervisor.asked = signal_name

    def join(self, prepared: Prepared) -> Prepared:
        """Return the run: this process reads all data."""
        return prepared

    def create_record(self, prepared: Prepared) -> RunRecord:
        """Create the run directory."""
        self.record = RunRecord.create(prepared)
        return self.record

    def scheduler(self, prepared: Prepared) -> Scheduler:
        """Build all stages, and connect them by local channels."""
        supervisor, clip = self.supervisor, prepared.global_clip
        context = ProcessContext(supervisor=supervisor, policy=prepared.policy, global_clip=clip)
        return Scheduler(prepared.executors(), context=context)

    def gather_weights(self, executors: Sequence[StageExecutor]) -> Mapping[str, Tensor]:
        """Return all weights."""
        return weights_of(pair for executor in executors for pair in executor.modules.items())

    def leave(self) -> None:
        """Return: no other process waits."""


def _stop_at_once() -> NoReturn:
    raise KeyboardInterrupt
