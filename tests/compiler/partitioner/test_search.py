"""Chains: the best of all cuts, by trying all of them."""

from __future__ import annotations

from math import inf

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.compiler.partitioner import search
from petra_graph.compiler.partitioner.interval_costs import CutCosts, cut_costs
from petra_graph.compiler.partitioner.problem import DepthRule, DeviceBudget, Item, ItemEdge, PartitionProblem
from petra_graph.compiler.partitioner.search import find
from petra_graph.errors import SpecError
from tests.support.examples import examples
from tests.support.partition_problems import all_cuts, chain, plain_devices, problems


def rank(problem: PartitionProblem, costs: CutCosts) -> tuple[float, ...]:
    """What the solver promises to make least, in this order."""
    if problem.objective == "memory":
        return (costs.peak_bytes, costs.tick_seconds, costs.channel_bytes)
    if problem.stage_count == len(problem.devices):
        return (costs.tick_seconds, costs.channel_bytes, costs.peak_bytes)
    free = all(device.memory_bytes is None for device in problem.devices)
    return (costs.tick_seconds, costs.channel_bytes) if free else (costs.tick_seconds,)


def cut_of(problem: PartitionProblem) -> list[int]:
    return [len(stage.items) for stage in find(problem).stages]


@examples(150)
@given(problems())
def test_no_cut_of_a_chain_is_better(problem):
    best = min((rank(problem, costs) for costs in all_cuts(problem)), default=None)
    found = find(problem)
    if best is None:
        assert found is None
    else:
        assert found is not None
        assert rank(problem, found) == best


@examples(100)
@given(problems(most=14))
def test_guessed_limits_change_nothing(problem):
    """Large problems are solved within guessed limits."""
    direct = find(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "_SMALL", 0)
        assert find(problem) == direct


@examples(100)
@given(problems(limits=False))
def test_inside_its_device_the_slowest_stage_is_as_fast_as_can_be(problem):
    if problem.objective == "memory":
        problem = attrs.evolve(problem, objective="balanced")
    found = find(problem)

    def hosts(costs: CutCosts) -> dict[str, int]:
        return {name: stage.device for stage in costs.stages for name in stage.items}

    same = [costs.slowest_stage_seconds for costs in all_cuts(problem) if hosts(costs) == hosts(found)]
    assert found.slowest_stage_seconds == min(same)


@given(problems())
def test_every_item_is_placed_once_and_nothing_is_empty(problem):
    found = find(problem)
    if found is None:
        return
    stages = found.stages
    assert [name for stage in stages for name in stage.items] == [item.name for item in problem.items]
    assert all(stage.items for stage in stages)
    assert len(stages) == problem.stage_count
    devices = [stage.device for stage in stages]
    assert devices == sorted(devices)
    assert set(devices) == set(range(len(problem.devices)))


@pytest.mark.parametrize(
    ("seconds", "devices", "expected"),
    [
        # torchgpipe's own cases.
        ([1, 2, 3, 4, 5, 6], 2, [4, 2]),
        ([6, 5, 4, 3, 2, 1], 2, [2, 4]),
        ([0, 0], 2, [1, 1]),
        ([1, 2, 3, 4, 5, 6], 3, [3, 2, 1]),
        ([9, 1, 1, 1, 9], 3, [1, 3, 1]),
        ([5], 1, [1]),
    ],
)
def test_known_balances(seconds, devices, expected):
    assert cut_of(chain(seconds, devices)) == expected


def test_a_fast_device_gets_more_wherever_it_is_listed():
    slow, fast = DeviceBudget(name="slow"), DeviceBudget(name="fast", speed=3.0)
    assert cut_of(chain([1] * 8, (slow, fast))) == [2, 6]
    assert cut_of(chain([1] * 8, (fast, slow))) == [6, 2]


def test_messages_move_a_cut_to_where_less_crosses_it():
    names = [Item(name=name, seconds=1) for name in "abcd"]
    edges = [
        ItemEdge(producer=a, consumer=b, forward_bytes=size, backward_bytes=size)
        for a, b, size in (("a", "b", 1), ("b", "c", 10), ("c", "d", 3))
    ]
    problem = PartitionProblem(items=names, edges=edges, devices=plain_devices(2), link_bytes_per_second=2.0)
    # In the middle messages would take 10/2 seconds each way, both at once; work hides those of the outer edges.
    assert cut_of(problem) == [1, 3]
    assert find(problem).device_seconds == (1, 3)
    # On a slower link the messages take longer than the work.
    slow = attrs.evolve(problem, link_bytes_per_second=0.25)
    assert find(slow).device_seconds == (4, 4)
    # Equal ticks: the edge with fewer bytes decides.
    free = attrs.evolve(problem, link_bytes_per_second=inf, devices=plain_devices(3))
    assert (cut_of(free), find(free).channel_bytes) == ([1, 2, 1], 8)


def test_what_stages_keep():
    items = [
        Item(name="stem", buffer_bytes=100, joins=True, resident_bytes=1),
        Item(name="down", buffer_bytes=10, joins=True, resident_bytes=1, working_bytes=7),
        Item(name="rev", version_bytes=3, working_bytes=9),
        Item(name="head", version_bytes=1),
    ]
    edges = [
        ItemEdge(producer=a, consumer=b, forward_bytes=5, backward_bytes=20)
        for a, b in (("stem", "down"), ("down", "rev"), ("rev", "head"))
    ]
    problem = PartitionProblem(
        items=items,
        edges=edges,
        devices=plain_devices(2),
        depth_rule=DepthRule(schedule="lockstep", accumulation=3),
        channel_capacity=2,
    )
    together = cut_costs(problem, [[0, 1], [2], [3]], [0, 0, 1])
    # Depths 5, 3, 1; staleness 4 and 2, so 2 versions and 1. `down` joins the stem.
    assert [problem.depth_rule.depth(stage.distance) for stage in together.stages] == [5, 3, 1]
    assert [stage.buffer_bytes for stage in together.stages] == [500, 0, 0]
    assert [stage.version_bytes for stage in together.stages] == [0, 3, 0]
    assert together.device_bytes == (2 + 500 + 3 + 9 + 2 * 20, 2 * 5)
    apart = cut_costs(problem, [[0], [1, 2, 3]], [0, 1])
    assert [stage.buffer_bytes for stage in apart.stages] == [300, 10]


def test_memory_decides_where_time_does_not_fit():
    items = [Item(name=name, seconds=1, resident_bytes=size) for name, size in zip("abcd", (8, 8, 1, 1), strict=True)]
    edges = [ItemEdge(producer=a, consumer=b) for a, b in ("ab", "bc", "cd")]
    devices = [DeviceBudget(name="x", memory_bytes=10), DeviceBudget(name="y", memory_bytes=10)]
    problem = PartitionProblem(items=items, edges=edges, devices=devices)
    assert cut_of(problem) == [1, 3]
    assert cut_of(attrs.evolve(problem, devices=plain_devices(2))) == [2, 2]
    assert find(attrs.evolve(problem, devices=plain_devices(2), objective="memory")).peak_bytes == 10


def test_stages_of_one_device_balance():
    assert cut_of(chain([1, 2, 3, 4, 5, 6], 1, stages=3)) == [3, 2, 1]
    # The first device has one item, so the second has the two stages.
    assert cut_of(chain([9, 1, 1, 1, 1, 1, 1], 2, stages=3)) == [1, 3, 3]


def test_a_flushed_window_is_never_stale():
    rule = DepthRule(schedule="1f1b", accumulation=3, flush="window")
    assert [rule.depth(distance) for distance in range(5)] == [1, 2, 3, 3, 3]
    assert [rule.staleness(distance) for distance in range(5)] == [0] * 5
    assert DepthRule(schedule="lockstep", accumulation=4).versions(3) == 2


def test_of_predictions_a_delayed_stage_holds_one():
    rule = DepthRule(schedule="lockstep", accumulation=2, most_versions=1)
    assert [rule.versions(distance) for distance in range(5)] == [0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stages": 1}, "2 items, 1 stage and 2 devices"),
        ({"stages": 3}, "2 items, 3 stages and 2 devices"),
        ({"devices": ()}, "0 devices"),
        ({"devices": (DeviceBudget(name="x", speed=0.0), DeviceBudget(name="y"))}, "speed 0.0"),
        ({"edges": [ItemEdge(producer="n1", consumer="n0")]}, "not listed before"),
        ({"edges": [ItemEdge(producer="n1", consumer="n9")]}, "not an item"),
        ({"items": [Item(name="n0"), Item(name="n0")], "edges": ()}, "two items"),
        ({"items": [Item(name="n0"), Item(name="n1", seconds=float("nan"))]}, "costs"),
        ({"items": [Item(name="n0"), Item(name="n1", resident_bytes=-1)]}, "costs"),
    ],
)
def test_tables_that_are_none(change, said):
    with pytest.raises(SpecError, match=said):
        attrs.evolve(chain([1, 1], 2), **change)


@examples(60)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=40), st.data())
def test_never_worse_than_torchgpipes_heuristic(seconds, data):
    devices = data.draw(st.integers(1, min(len(seconds), 8)))
    theirs = max(map(sum, block_partition(seconds, devices)))
    assert find(chain(seconds, devices)).tick_seconds <= theirs


def test_better_than_torchgpipes_heuristic_on_a_pyramid():
    """Blocks of a network whose early layers are wide: few large ones first, many small ones later."""
    seconds = [64, 32, 32, 30, 16, 16, 16, 15, 8, 8, 8, 8, 8, 7, 4, 4, 4, 3, 2, 1]
    theirs = max(map(sum, block_partition(seconds, 4)))
    assert (find(chain(seconds, 4)).tick_seconds, theirs) == (80, 96)


def block_partition(sequence: list[int], parts: int) -> list[list[int]]:
    """Barany and Grinberg's exchange, https://arxiv.org/abs/1308.2452, from equal counts, by which torchgpipe balances.

    (torchgpipe first subtracts the least cost from all, which only makes its blocks less even.)
    A largest block gives an item on towards the nearest smallest one, until they differ by at most the largest item.
    """
    ends = [len(sequence) // parts * (part + 1) for part in range(parts - 1)] + [len(sequence)]
    most = max(sequence)

    def blocks() -> list[list[int]]:
        return [sequence[a:b] for a, b in zip([0, *ends], ends, strict=False)]

    while True:
        sums = [sum(block) for block in blocks()]
        largest = max(range(parts), key=lambda part: (sums[part], part))
        while True:
            sums = [sum(block) for block in blocks()]
            smallest = min(range(parts), key=lambda part: (sums[part], abs(part - largest)))
            if sums[largest] <= sums[smallest] + most:
                return blocks()
            step = 1 if smallest > largest else -1
            giver = smallest - step
            if step == 1:
                ends[giver] -= 1
            else:
                ends[smallest] += 1
            if giver == largest:
                break
