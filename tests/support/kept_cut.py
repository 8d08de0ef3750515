"""The state of all stages at cuts, kept in memory."""

from collections import defaultdict
from collections.abc import Sequence

from petra_graph.executor.state import SavedTensors
from petra_graph.program.stage_program import StageProgram
from petra_graph.training.checkpoint import CutRecorder


class KeptCut(CutRecorder):
    """Keeps the cuts before some forwards."""

    def __init__(self, programs: Sequence[StageProgram], *cuts: int) -> None:
        super().__init__(programs)
        self._cuts = cuts
        self.copies_at: dict[int, dict[int, SavedTensors]] = defaultdict(dict)
        """By cut and stage."""

    def due(self, micro_batch: int) -> bool:
        return micro_batch in self._cuts

    def complete(self, at: int, saved: SavedTensors) -> None:
        assert at in self._cuts
        self.copies_at[at][saved.facts["index"]] = saved
