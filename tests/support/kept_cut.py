"""The state of all stages at one cut, kept in memory."""

from __future__ import annotations

from collections.abc import Sequence

from petra_graph.executor.encoded_tensors import EncodedTensors
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.executor.stage_state import SavedTensors
from petra_graph.program.channels import ChannelKey
from petra_graph.program.cut import Cut
from petra_graph.program.stage_program import StageProgram
from petra_graph.runtime.scheduler.cut_recorder import CutRecorder


class KeptCut:
    """Observes the cut before one forward."""

    def __init__(self, programs: Sequence[StageProgram], at: int | None = None) -> None:
        """Begin; `at` is None where the stages are handed over when they have halted."""
        self._at, self._recorder = at, CutRecorder(programs, self._complete)
        self.copies: dict[int, SavedTensors] = {}
        """By stage."""

    def may_pass(self, _micro_batch: int) -> bool:
        return True

    def due(self, micro_batch: int) -> bool:
        return micro_batch == self._at

    def reached(self, executor: StageExecutor, cut: Cut) -> None:
        self._recorder.reached(executor, cut, {})

    def received(self, stage: int, key: ChannelKey, micro_batch: int, message: EncodedTensors) -> None:
        self._recorder.received(stage, key, micro_batch, message)

    def _complete(self, at: int, saved: SavedTensors) -> None:
        assert self._at in (None, at)
        self.copies[saved.facts["index"]] = saved
