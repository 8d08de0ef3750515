"""The rest of a run, as the scheduler of one process sees it."""

from __future__ import annotations

from typing import Protocol

from attrs import field, frozen

from petra_graph.executor.encoded_tensors import EncodedTensors
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.program.channels import ChannelKey
from petra_graph.program.cut import Cut
from petra_graph.program.schedule import Policy
from petra_graph.runtime.control.supervisor import Supervisor
from petra_graph.runtime.data_parallel.replicas import Replicas


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


@frozen(kw_only=True)
class ProcessContext:
    """One process among those of a run."""

    rank: int = 0
    size: int = 1
    supervisor: Supervisor = field(factory=Supervisor)
    policy: Policy = "arrival"
    global_clip: bool = False
    """All stages are clipped by one norm."""
    replicas: Replicas | None = None
