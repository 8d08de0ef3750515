"""A run in one process, which hosts all stages and has no other process to tell anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import attrs
from attrs import define, field
from torch import Tensor

from petra_graph.program.stage_program import StageProgram
from petra_graph.runtime.control.start_up import REQUESTS
from petra_graph.runtime.control.stop_signals import stop_requests
from petra_graph.runtime.scheduler.process_context import ProcessContext, SingleProcess, Supervisor
from petra_graph.runtime.scheduler.scheduler import Scheduler
from petra_graph.spec.load_spec import Given
from petra_graph.training.checkpoints.resumption import Resumption
from petra_graph.training.loop.meters import Meters
from petra_graph.training.loop.peers import Progress
from petra_graph.training.prepared_run import Prepared
from petra_graph.training.processes.run_process import RunProcess, RunSoFar
from petra_graph.training.record.run_record import open_record
from petra_graph.training.start_reporter import StartReporter


@define
class HostOfAll(RunProcess):
    rank: int = 0
    size: int = 1
    supervisor: Supervisor = field(factory=SingleProcess)
    so_far: RunSoFar = field(factory=RunSoFar)

    @property
    def records(self) -> bool:
        return True

    @contextmanager
    def control(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            if self.so_far.record is not None:
                self.so_far.record.summarise("interrupted", self.so_far.trained, weights=None)
            raise
        except Exception as error:
            if self.so_far.record is None:
                raise
            failure = self.so_far.record.failed(error, self.so_far.trained)
            if failure is error:
                raise
            raise failure from error

    def stop_requests(self, more: Sequence[int]) -> AbstractContextManager[None]:
        """As `RunProcess` promises; a second SIGINT stops at once."""
        return stop_requests(self._request, _stop_at_once, heard=(*REQUESTS, *more))

    def _request(self, signal_name: str) -> None:
        self.supervisor.stop_signal = signal_name

    def start_reporter(self) -> StartReporter:
        return StartReporter()

    def resumption(self, directory: Path | None, given: Given, overrides: Iterable[str]) -> Resumption | None:
        return None if directory is None else Resumption.find(directory)

    def join(self, prepared: Prepared) -> Prepared:
        return prepared

    def open_directory(self, prepared: Prepared, resumption: Resumption | None) -> RunSoFar:
        record = open_record(prepared, resumption)
        return attrs.evolve(self.so_far, record=record, directory=record.directory)

    def own_programs(self, prepared: Prepared) -> Sequence[StageProgram]:
        return prepared.programs

    def build(self, prepared: Prepared) -> Scheduler:
        context = ProcessContext(supervisor=self.supervisor, policy=prepared.policy, global_clip=prepared.global_clip)
        return Scheduler(prepared.executors(), context=context)

    def checkpoint_store(self) -> None:
        return None

    def blind(self) -> Sequence[str]:
        return ()

    def gather(self, name: str, own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return own

    def gather_measured(self, own: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        return [own]

    def leaders(self, name: str, own: str) -> str:
        return own

    def warnings(self) -> Sequence[str]:
        return ()

    def share_directory(self) -> None: ...
    def exchange_meters(self, epoch: int, meters: Meters) -> None: ...
    def warn(self, texts: Sequence[str]) -> None: ...
    def publish(self, progress: Progress) -> None: ...
    def leave(self, *, interrupted: bool) -> None: ...


def _stop_at_once() -> NoReturn:
    raise KeyboardInterrupt
