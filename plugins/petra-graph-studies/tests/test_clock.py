"""The global clock: equation (5) ticked through, PipeDream's half ticks, and each stage's own order of operations."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from petra_graph_studies.replay import Clock

from petra_graph.program.schedule import depths, order


def clock(schedule, stages, micro_batches, accumulation, flush="drain"):
    found = depths(schedule, range(stages - 1, -1, -1), accumulation)
    return Clock(depths=found, micro_batches=micro_batches, accumulation=accumulation, flush=flush)


TABLE = """\
                    lockstep         1f1b            sequential
    forwards        0  2  4          2  3  4         4  4  4
    backward of 1   4  5  6          4  5  5         4  4  4
    backward of 2   3  4  5          4  4  5         4  4  4
    backward of 3   2  3  4          3  4  4         4  4  4
"""


def test_the_table():
    """The table of the module's docstring, made anew."""
    clocks = [clock(schedule, 3, 20, 1) for schedule in ("lockstep", "1f1b", "sequential")]
    rows = [("forwards", [each.at_forward(4) for each in clocks])]
    rows += [(f"backward of {j + 1}", [each.at_backward(4, j) for each in clocks]) for j in range(3)]
    runners = [(name, ["  ".join(map(str, versions)) for versions in found]) for name, found in rows]
    lines = [f"    {name:<16}{a:<17}{b:<16}{c}" for name, (a, b, c) in runners]
    assert TABLE.splitlines()[1:] == lines


counts = st.integers(1, 24)
windows = st.integers(1, 5)


@given(
    schedule=st.sampled_from(["lockstep", "1f1b", "sequential"]),
    stages=st.integers(1, 6),
    micro_batches=counts,
    accumulation=windows,
    flush=st.sampled_from(["drain", "window"]),
)
def test_a_stage_knows_its_own_updates(schedule, stages, micro_batches, accumulation, flush):
    """Of itself, the clock says what the stage's order of operations says."""
    found = clock(schedule, stages, micro_batches, accumulation, flush)
    for j, depth in enumerate(found.depths):
        updates = 0
        for action in order(depth, range(micro_batches), accumulation, flush):
            match action.verb:
                case "forward":
                    assert found.at_forward(action.micro_batch)[j] == updates
                case "backward":
                    assert found.at_backward(action.micro_batch, j)[j] == updates
                case "update":
                    updates += 1
