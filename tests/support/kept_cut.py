"""The state of all stages at cuts, kept in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from petra_graph.executor.encoded import EncodedTensors
from petra_graph.executor.stage import StageExecutor
from petra_graph.executor.state import SavedTensors
from petra_graph.program.channels import ChannelKey
from petra_graph.program.cut import Cut
from petra_graph.program.stage_program import StageProgram
from petra_graph.training.checkpoint import CutRecorder


class KeptCut:
    """Observes the cuts before some forwards."""

    def __init__(self, programs: Sequence[StageProgram], *cuts: int) -> None:
        """Begin; without `cuts`, the stages are handed over when they have halted."""
        self._cuts, self._recorder = cuts, CutRecorder(programs, self._complete)
        self.copies_at: dict[int, dict[int, SavedTensors]] = defaultdict(dict)
        """By cut and stage."""

    @property
    def copies(self) -> Mapping[int, SavedTensors]:
        """Of the only cut, by stage."""
        (copies,) = self.copies_at.values() or [{}]
        return copies

    def may_pass(self, _micro_batch: int) -> bool:
        return True

    def due(self, micro_batch: int) -> bool:
        return micro_batch in self._cuts

    def reached(self, executor: StageExecutor, cut: Cut) -> None:
        self._recorder.reached(executor, cut, {})

    def received(self, _stage: int, key: ChannelKey, micro_batch: int, message: EncodedTensors) -> None:
        self._recorder.received(key, micro_batch, message)

    def _complete(self, at: int, saved: SavedTensors) -> None:
        assert not self._cuts or at in self._cuts
        self.copies_at[at][saved.facts["index"]] = saved
