"""The rest of a run, as the scheduler of one process sees it."""

from __future__ import annotations

from typing import Protocol

from attrs import define, field, frozen

from petra_graph.executor.encoded_tensors import EncodedTensors
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.program.channels import ChannelKey
from petra_graph.program.cut import Cut
from petra_graph.program.schedule import Policy
from petra_graph.runtime.control.failure import OperationStatus
from petra_graph.runtime.data_parallel.replicas import Replicas


class Supervisor(Protocol):
    """Passes status, requests to stop and failures between processes."""

    watches: bool
    """Whether the status and failures are looked at during operations."""
    status: OperationStatus | None
    """What this process does or waits for; set by the scheduler."""
    stop_signal: str | None
    """The signal by which a user, anywhere, asked to stop."""
    stop_at: int | None
    """Forwards after which every stage stops."""
    announced_cuts: set[int]
    """Forwards before which there is a cut that no plan fixes, as far as this process knows."""
    agreed_cuts: set[int]
    """Those of which every process knows; the process that hosts the first stage learns it."""

    def announce_cut(self, at: int) -> None:
        """Tell every process of a cut; only the process that hosts the first stage calls this."""
        ...

    def check(self) -> None:
        """Raise `Failed` if the run has failed elsewhere."""
        ...

    def stop_after(self, forwards: int) -> None:
        """Decide where all stages stop; only the process that hosts the first stage calls this."""
        ...

    def sleep(self) -> None:
        """Sleep until a message, room, a request or a failure has come."""
        ...


class CutObserver(Protocol):
    """Takes the state of every stage at some cuts (`program.cut`), while the pipeline keeps running."""

    def may_pass(self, micro_batch: int) -> bool:
        """Whether the first stage may do this forward: all processes know of every cut up to there."""
        ...

    def due(self, micro_batch: int) -> bool:
        """Whether there is a cut before this forward."""
        ...

    def reached(self, executor: StageExecutor, cut: Cut) -> None:
        """Observe that a stage has come to a cut."""
        ...

    def received(self, stage: int, key: ChannelKey, micro_batch: int, message: EncodedTensors) -> None:
        """Observe a message from a consumer, which may have been in flight at a cut that the stage has passed."""
        ...


@define
class SingleProcess:
    """The supervisor of a run in one process."""

    watches: bool = False
    status: OperationStatus | None = None
    stop_signal: str | None = None
    stop_at: int | None = None
    announced_cuts: set[int] = field(factory=set)
    agreed_cuts: set[int] = field(factory=set)

    def announce_cut(self, at: int) -> None:
        """Note a cut: no other process need know."""
        self.announced_cuts.add(at)
        self.agreed_cuts.add(at)

    def check(self) -> None:
        """Return: nothing has failed elsewhere."""

    def stop_after(self, forwards: int) -> None:
        self.stop_at = forwards

    def sleep(self) -> None:
        """Raise, since nothing can come from elsewhere."""
        cause = "a bug in the schedule, or a checkpoint that another program has changed"
        raise RuntimeError(f"every stage waits ({self.status}): {cause}")


@frozen(kw_only=True)
class ProcessContext:
    """One process among those of a run."""

    rank: int = 0
    size: int = 1
    supervisor: Supervisor = field(factory=SingleProcess)
    policy: Policy = "arrival"
    global_clip: bool = False
    """All stages are clipped by one norm."""
    replicas: Replicas | None = None
