"""Both models on whole networks: relations that hold whatever the numbers are."""

from __future__ import annotations

import pytest

from petra_graph.compiler.lower import partition, per_block
from petra_graph.compiler.memory import stage_memory, summed
from petra_graph.compiler.placement_search import cut_and_place, place_stages
from petra_graph.compiler.timing import timing
from petra_graph.program.device_types import Link
from tests.support.settings import setting


def programs_of(used):
    return used.placed(place_stages(used, partition(used.graph, per_block(used.graph), [""])))


def timing_per_block(count=5, schedule="lockstep", **changes):
    used = setting(count, schedule=schedule, **changes)
    return timing(used.pipeline(programs_of(used)))


def test_links_slow_down_what_waits_for_each_message():
    link = Link(latency_seconds=0.5, bytes_per_second=1e9)
    apart = timing_per_block(5, schedule="sequential", link=link)
    assert apart.tick_seconds == pytest.approx(23, rel=1e-3)
    assert apart.exposed_communication.links == pytest.approx(4 / 23, rel=1e-3)
    hidden = timing_per_block(5, link=link)  # Lockstep runs ahead far enough to hide it.
    assert (hidden.tick_seconds, hidden.exposed_communication.links) == pytest.approx((4, 0), rel=1e-3)


def test_waiting_for_an_all_reduce_is_no_work():
    """A plan said "bubble 0 %, busy 100 %" where 15.8 of 25.1 ms were waiting for replicas."""
    alone = timing_per_block(1, schedule="1f1b")
    made = timing_per_block(1, schedule="1f1b", replicas=2, link=Link(latency_seconds=10.0))
    exchange = 5 * 2 * 10.0  # of each stage
    assert made.tick_seconds == pytest.approx(alone.tick_seconds + exchange)
    assert made.utilisation[0] == pytest.approx(19 / (19 + exchange))
    assert made.exposed_communication.all_reduce == made.bubble_fraction == pytest.approx(exchange / (19 + exchange))


def test_reconstruction_at_stored_parameters_costs_a_forward_more():
    delayed = timing_per_block(1, method="delayed-reconstructed").tick_seconds
    assert (
        delayed - timing_per_block(1).tick_seconds == 3
    )  # one unit for each of the reversible nodes, all of which have a depth above 1


def test_keeping_graphs_costs_three_units():
    used = setting(1, method="backprop", schedule="sequential")
    assert timing(used.pipeline(used.placed(cut_and_place(used, 1)))).tick_seconds == 4 * 3 + 3


def test_devices_hold_less_than_their_stages_apart():
    used = setting(2, schedule="lockstep")
    programs = programs_of(used)
    together, apart = summed(used.device_memory(programs).values()), summed(stage_memory(programs, used.costs))
    assert together.total < apart.total
    assert together.parameters == apart.parameters
