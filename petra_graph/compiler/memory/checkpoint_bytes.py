"""The bytes of a checkpoint: what every stage holds at a cut through the running pipeline, and what is in flight there.

The cut is the first one at a window's end with a full pipeline, so no sum of gradients is in it. A checkpoint has parameters
with running statistics, optimizer state, older parameters, inputs that wait for their backward, and the backward messages
in flight; its headers are left out, of a few kilobytes a stage.
"""

from __future__ import annotations

from collections.abc import Sequence

from petra_graph.compiler.memory.pipeline_memory import bytes_at_cut
from petra_graph.compiler.memory.segment_memory import EncodedShare
from petra_graph.program.costs import CostTable
from petra_graph.program.cut import Cut, aligned
from petra_graph.program.stage_program import StageProgram


def checkpoint_bytes(programs: Sequence[StageProgram], costs: CostTable, transport: EncodedShare | None = None) -> int:
    """Return the bytes of a checkpoint.

    Args:
        transport: the share of bytes in which tensors wait and travel; None: all.
    """
    accumulation = programs[0].accumulation
    windows = 1 + -(-max(program.depth for program in programs) // accumulation)
    ahead = windows * accumulation
    cut = Cut(micro_batches=range(2 * ahead), at=aligned(ahead, 2 * ahead, accumulation, programs[0].flush))
    return bytes_at_cut(programs, costs, cut, transport=transport)
