"""What processes enqueue is what the docstring draws, and no operation waits for one that its process enqueues later."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from petra_graph.program.schedule import static_order
from tests.support import stream_orders as drawn_in
from tests.support.deadlock import deadlock
from tests.support.pipelines import CHAIN, pipeline
from tests.support.simulated_pipelines import any_programs
from tests.support.stream_orders import stream_orders

TWO_STAGES = """
    process 0   r0' r1' F0 s0 F1 s1 B0 U F2 s2 r2' B1 U B2 U
    process 1   r0 r1 F0 B0 s0' U r2 F1 B1 s1' U F2 B2 s2' U
"""


def word(operation) -> str:
    if operation.kind == "compute":
        return str(operation.action)
    back = "" if operation.channel.direction == "forward" else "'"
    return f"{operation.kind[0]}{operation.action.micro_batch}{back}"


def drawn(orders) -> str:
    lines = (f"    process {rank}   {' '.join(map(word, order))}" for rank, order in orders.items())
    return "\n".join(["", *lines, ""])


def two_stages():
    stages = (("stem", "rev0"), ("rev1", "rev2", "head"))
    programs = pipeline(CHAIN, (8,), schedule="1f1b", stages=stages).programs
    return stream_orders(programs, (0, 1), static_order(programs, range(3)))


def test_two_stages():
    assert drawn(two_stages()) == TWO_STAGES
    assert TWO_STAGES.strip("\n") in drawn_in.__doc__


def test_what_operations_wait_for():
    """For messages, for a slot that is written anew, for what was computed; on its own stream each waits for the one ahead anyway."""
    waits = [
        " ".join(f"{word(one)}:{'+'.join(word(order[place]) for place in one.after)}" for one in order)
        for order in two_stages().values()
    ]
    assert waits == [
        "r0': r1': F0: s0:F0 F1:s0 s1:F1 B0:r0' U: F2:s1 s2:F2 r2':F2 B1:r1' U: B2:r2' U:",
        "r0: r1: F0:r0 B0: s0':B0 U: r2:U F1:r1 B1:s0' s1':B1 U: F2:r2 B2:s1' s2':B2 U:",
    ]
    streams = {(one.stream, one.communicator) for order in two_stages().values() for one in order}
    assert streams == {
        ("compute", None),
        *((f"{kind} on {name}", name) for kind in ("send", "receive") for name in ("rev0 -> rev1", "rev0 <- rev1")),
    }


def test_a_process_alone_sends_nothing():
    programs = pipeline(CHAIN, (8,), schedule="1f1b").programs
    (order,) = stream_orders(programs, (0,) * 5, static_order(programs, range(3))).values()
    assert [(one.stage, one.action) for one in order] == list(static_order(programs, range(3)))
    assert not any(one.after for one in order)


@given(any_programs(), st.integers(1, 12), st.integers(1, 4))
def test_no_legal_order_stands_still(programs, count, processes):
    """Whole backwards, and the real scheduler, are in `tests/promises/test_strict_transport.py`."""
    ranks = [stage * processes // len(programs) for stage in range(len(programs))]
    assert deadlock(stream_orders(programs, ranks, static_order(programs, range(count)))) == ()
