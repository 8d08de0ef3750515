"""Both models on whole networks: relations that hold whatever the numbers are."""

from __future__ import annotations

import pytest
from attrs import evolve

from petra_graph.compiler.lower import partition, per_block
from petra_graph.compiler.placement_search import cut_and_place, place_stages
from petra_graph.compiler.prediction import Prediction
from petra_graph.program.device_types import Link
from tests.support.settings import setting


def by_hand(used):
    return place_stages(used, partition(used.graph, per_block(used.graph), [""]))


def per_block_prediction(count=5, schedule="lockstep", **changes):
    used = setting(count, schedule=schedule, **changes)
    return Prediction(inputs=used, placement=by_hand(used))


def test_one_device_does_one_thing_after_another():
    made = per_block_prediction(1)
    # Stem and three reversible nodes of 1 + 3 units, the head of 3.
    assert made.timing.tick_seconds == 19
    assert made.timing.bubble_fraction == 0


def test_a_device_a_stage_goes_as_fast_as_the_slowest():
    made = per_block_prediction(5)
    assert made.timing.tick_seconds == 4
    assert made.timing.utilisation == {"d0": 1, "d1": 1, "d2": 1, "d3": 1, "d4": 0.75}


def test_links_slow_down_what_waits_for_each_message():
    link = Link(latency_seconds=0.5, bytes_per_second=1e9)
    assert per_block_prediction(5, schedule="sequential", link=link).timing.tick_seconds == pytest.approx(23, rel=1e-3)
    # Lockstep runs ahead far enough to hide it.
    assert per_block_prediction(5, link=link).timing.tick_seconds == pytest.approx(4, rel=1e-3)


def test_waiting_for_an_all_reduce_is_no_work():
    """A plan said "bubble 0 %, busy 100 %" where 15.8 of 25.1 ms were waiting for replicas."""
    alone = per_block_prediction(1, schedule="1f1b")
    made = per_block_prediction(1, schedule="1f1b", replicas=2, link=Link(latency_seconds=10.0))
    timing = made.timing
    exchange = 5 * 2 * 10.0  # of each stage
    assert timing.tick_seconds == pytest.approx(alone.timing.tick_seconds + exchange)
    assert timing.utilisation["d0"] == pytest.approx(19 / (19 + exchange))
    assert timing.exchange_fraction == timing.bubble_fraction == pytest.approx(exchange / (19 + exchange))


def test_reconstruction_at_stored_parameters_costs_a_forward_more():
    petra = per_block_prediction(1).timing.tick_seconds
    delayed = per_block_prediction(1, method="delayed-reconstructed").timing.tick_seconds
    assert delayed - petra == 3  # one unit for each of the reversible nodes, all of which have a depth above 1


def test_keeping_graphs_costs_three_units():
    used = setting(1, method="backprop", schedule="sequential")
    made = Prediction(inputs=used, placement=cut_and_place(used, 1))
    assert made.timing.tick_seconds == 4 * 3 + 3


def test_devices_hold_less_than_their_stages_apart():
    made = per_block_prediction(2)
    assert set(made.device_memory) == {"d0", "d1"}
    assert made.total_memory.total == sum(held.total for held in made.device_memory.values())
    assert made.total_memory.total < sum(stage.total for stage in made.memory)
    assert made.total_memory.parameters == sum(stage.parameters for stage in made.memory)


def test_a_stage_that_has_a_device_to_itself_fills_it():
    made = per_block_prediction(5)
    assert tuple(made.device_memory.values()) == made.memory


def test_a_timeline_goes_beyond_the_fill():
    made = per_block_prediction(5)
    ends = [event.end for event in made.timeline().events]
    assert max(ends) >= made.timing.fill_seconds + 6 * made.timing.tick_seconds


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("auto", ["queue", "shared-memory", "queue", "process-group"]), ("nccl", ["queue", "nccl", "queue", "nccl"])],
)
def test_what_carries_messages_between_the_processes_of_devices(asked, expected):
    used = setting(3, between_processes=asked)
    devices = tuple(evolve(device, machine=place // 2) for place, device in enumerate(used.devices))
    inputs = evolve(used, devices=devices)
    stages = partition(used.graph, per_block(used.graph), [devices[place].name for place in (0, 0, 1, 1, 2)])
    assert [*inputs.carriers(inputs.programs(stages, "lockstep")).values()] == expected
