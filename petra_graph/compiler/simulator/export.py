"""Orders in the words of torch's pipelining: "0F3" is stage 0's forward of micro-batch 3, "0B3" its full backward.

torch.distributed.pipelining reads such lists as the compute actions of a schedule. It counts stages from 0, knows only
chains of stages, and has no word for an update, which it leaves to the caller; here updates are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from petra_graph.compiler.simulator.describe import pipeline
from petra_graph.compiler.simulator.events import simulate
from petra_graph.compiler.simulator.model import StageSeconds
from petra_graph.program.stage_program import StageProgram

_UNITS = StageSeconds(forward=1, backward=2)


def to_torch_actions(
    programs: Sequence[StageProgram], micro_batches: int, ranks: Sequence[int] | None = None
) -> Mapping[int, list[str]]:
    """Return every rank's compute actions for one run from start to drain.

    Args:
        programs: the stages, in topological order.
        micro_batches: of the run.
        ranks: each stage's rank, for ranks that host several: their stages take turns as in a simulation where a
            forward takes one unit and a backward two. Default: one stage a rank.

    Raises:
        Deadlock: some stage would wait for ever.
    """
    places = range(len(programs)) if ranks is None else ranks
    model = pipeline(programs, [_UNITS] * len(programs), placement=[str(rank) for rank in places])
    timeline = simulate(model, micro_batches)
    found: dict[int, list[str]] = {rank: [] for rank in sorted(places)}
    for event in timeline.events:
        if event.verb != "update":
            found[int(event.device)].append(f"{event.stage - 1}{event.action}")
    return found
