"""Wrong orders are found, in words; and devices that enqueue in such an order do stand still."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from attrs import evolve

from petra_graph.program.schedule import static_order
from tests.support import strict_transport
from tests.support.deadlock import deadlock
from tests.support.pipelines import CHAIN, SKIP, batches, pipeline
from tests.support.stream_orders import stream_orders
from tests.support.strict_transport import Standstill, Wiring

COUNT = 7
SHAPE = (8,)


def built(nodes=CHAIN, **more):
    return pipeline(nodes, SHAPE, batch=4, **{"schedule": "1f1b", **more})


def orders_of(made, ranks):
    return stream_orders(made.programs, ranks, static_order(made.programs, range(COUNT)))


def trained(made, ranks, wiring=strict_transport.USUAL, **more):
    data = batches(SHAPE, COUNT)

    def body(scheduler, _):
        scheduler.train(data, range(COUNT), lambda _: None)

    strict_transport.run(made.executors, ranks, body, wiring=wiring, **more)


WRONG = {
    "both directions of an edge share a communicator": Wiring(communicator=lambda key: " - ".join(key.edge)),
    "receives are posted late, and sends wait on the stream of the operations": Wiring(
        ahead=False, sends_on_compute=True
    ),
}


@pytest.mark.parametrize("wiring", WRONG.values(), ids=WRONG)
def test_wrong_orders_stand_still(wiring):
    made = built()
    assert deadlock(wiring.rewired(orders_of(made, range(5)))) != ()
    with pytest.raises(Standstill, match="process 0: "):
        trained(made, range(5), wiring)


TWO_STAGES = (("stem", "rev0"), ("rev1", "rev2", "head"))


@pytest.mark.parametrize("schedule", ["1f1b", "lockstep"])
@pytest.mark.parametrize("ranks", [(0, 1, 0, 1, 0), (0, 1, 2, 3, 4)], ids=str)
@pytest.mark.parametrize("sends_on_compute", [False, True])
def test_found_where_devices_stand_still_and_nowhere_else(schedule, ranks, sends_on_compute):
    """Of receives that are posted late: where they are posted ahead, the examined order is stricter than the transport."""
    wiring, made = Wiring(ahead=False, sends_on_compute=sends_on_compute), built(schedule=schedule)
    found = deadlock(wiring.rewired(orders_of(made, ranks)))
    with pytest.raises(Standstill) if found else nullcontext():
        trained(made, ranks, wiring)


def test_a_cycle_in_words():
    orders = orders_of(built(stages=TWO_STAGES), (0, 1))
    shared, late = (deadlock(wiring.rewired(orders)) for wiring in WRONG.values())
    assert shared == (
        (
            "on rank 0 the send of rev0 -> rev1 of micro-batch 3 waits for the receive of rev0 <- rev1 of micro-batch 2, "
            "which is ahead of it on communicator rev0 - rev1"
        ),
        (
            "on rank 1 the send of rev0 <- rev1 of micro-batch 2 waits for the receive of rev0 -> rev1 of micro-batch 3, "
            "which is ahead of it on communicator rev0 - rev1"
        ),
    )
    assert late == (
        (
            "on rank 1 the receive of rev0 -> rev1 of micro-batch 1 waits for stage 2's update of micro-batch 0, "
            "through its event"
        ),
        (
            "on rank 1 stage 2's update of micro-batch 0 waits for the send of rev0 <- rev1 of micro-batch 0, "
            "which is ahead of it on stream compute"
        ),
        (
            "on rank 0 the receive of rev0 <- rev1 of micro-batch 0 waits for the send of rev0 -> rev1 of micro-batch 1, "
            "through its event"
        ),
    )


def test_two_skip_edges_that_share_a_communicator():
    """Their messages meet by their order alone; here nobody notices."""
    wiring = Wiring(communicator=lambda key: f"{key.edge.consumer} {key.direction}")
    made, alone = built(SKIP), built(SKIP)
    ranks = (0, 0, 0, 1, 1, 1)
    assert deadlock(wiring.rewired(orders_of(made, ranks))) == (
        (
            "the send of rev1 <- join of micro-batch 0 on rank 1 meets the receive of rev0 <- join of micro-batch 1 on rank 0 "
            "on communicator join backward"
        ),
    )
    trained(made, ranks, wiring)
    trained(alone, ranks)
    found, expected = made.parameters(), alone.parameters()
    assert not all(torch.equal(found[key], expected[key]) for key in expected)


def test_streams_that_share_a_hardware_queue():
    """A receive that is posted ahead there is in front of everything."""
    orders = orders_of(built(stages=TWO_STAGES), (0, 1))
    queued = {rank: [evolve(one, stream="queue") for one in order] for rank, order in orders.items()}
    assert (
        "on rank 0 stage 1's backward of micro-batch 1 waits for the receive of rev0 <- rev1 of micro-batch 2, "
        "which is ahead of it on stream queue"
    ) in deadlock(queued)


def test_a_device_that_synchronises():
    """It waits for all that its process has enqueued: for receives that are posted ahead, whose messages need what comes later."""
    orders = orders_of(built(stages=TWO_STAGES), (0, 1))
    place, second = [(place, one) for place, one in enumerate(orders[0]) if one.kind == "compute"][1]
    synchronised = [*orders[0]]
    synchronised[place] = evolve(second, after=tuple(range(place)))
    assert (
        "on rank 0 stage 1's forward of micro-batch 1 waits for the receive of rev0 <- rev1 of micro-batch 1, "
        "through its event"
    ) in deadlock({**orders, 0: synchronised})


def test_a_message_without_its_send():
    orders = orders_of(built(stages=TWO_STAGES), (0, 1))
    sent = [one if one.kind != "send" else evolve(one, communicator=None) for one in orders[1]]
    assert deadlock({**orders, 1: sent}) == (
        "the receive of rev0 <- rev1 of micro-batch 0 on rank 0 meets no send on communicator rev0 <- rev1",
    )


def test_a_process_that_takes_what_is_posted_stands_still():
    """The stage nearest to the head goes first, though the message that it reads needs the process's other stage."""
    with pytest.raises(Standstill):
        trained(built(), (0, 1, 0, 1, 0), Wiring(forwards_awaited=False), policy="arrival")
