"""Stages that are there already, given to devices."""

from __future__ import annotations

from itertools import combinations, pairwise

import attrs
from hypothesis import assume, given
from hypothesis import strategies as st

from petra_graph.compiler.partitioner.interval_costs import cut_costs
from petra_graph.compiler.partitioner.known_stages import find_place
from petra_graph.compiler.partitioner.problem import DepthRule, DeviceBudget
from tests.support.examples import examples
from tests.support.partition_problems import chain, plain_devices, problems


def devices_of(solution) -> list[int]:
    return [stage.device for stage in solution.stages]


def test_a_slow_stage_has_a_device_to_itself():
    # Spread by number, each device would have two: 10, 2 and 2.
    problem = chain([9, 1, 1, 1, 1, 1], 3)
    placed = find_place(problem, [[item.name] for item in problem.items])
    assert devices_of(placed) in ([0, 1, 1, 2, 2, 2], [0, 1, 1, 1, 2, 2])
    assert placed.tick_seconds == 9


def test_as_many_devices_as_stages_or_more_give_each_one():
    problem = chain([1, 2, 3], 3)
    stages = [["n0", "n1"], ["n2"]]
    assert devices_of(find_place(problem, stages)) == [0, 1]


def test_what_a_stage_keeps_depends_on_its_place_not_its_device():
    items = [attrs.evolve(item, buffer_bytes=2) for item in chain([1, 1, 1, 1], 2).items]
    limits = [DeviceBudget(name="small", memory_bytes=8), DeviceBudget(name="large", memory_bytes=12)]
    problem = chain([1, 1, 1, 1], limits, depth_rule=DepthRule(schedule="1f1b"), items=items)
    # Depths 4, 3, 2, 1: the first alone fills the small device.
    placed = find_place(problem, [[item.name] for item in items])
    assert devices_of(placed) == [0, 1, 1, 1]
    assert placed.device_bytes == (8, 12)


@examples(120)
@given(problems(most=8, branches=True), st.data())
def test_no_placement_in_their_order_is_better(problem, data):
    count = len(problem.items)
    cuts = data.draw(st.sets(st.integers(1, count - 1))) if count > 1 else set()
    groups = [list(range(a, b)) for a, b in pairwise([0, *sorted(cuts), count])]
    assume(len(groups) >= len(problem.devices))
    best = None
    for changes in combinations(range(1, len(groups)), len(problem.devices) - 1):
        devices = [sum(change <= stage for change in changes) for stage in range(len(groups))]
        costs = cut_costs(problem, groups, devices)
        if all(used <= limit for used, limit in zip(costs.device_bytes, problem.limits, strict=True)):
            value = costs.tick_seconds if problem.objective == "balanced" else costs.peak_bytes
            best = value if best is None else min(best, value)
    names = [[problem.items[index].name for index in group] for group in groups]
    placed = find_place(problem, names)
    if best is None:
        assert placed is None
    else:
        assert placed is not None
        assert (placed.tick_seconds if problem.objective == "balanced" else placed.peak_bytes) == best
        assert [list(stage.items) for stage in placed.stages] == names


def test_one_device_takes_all():
    problem = chain([1, 2], plain_devices(1))
    assert devices_of(find_place(problem, [["n0"], ["n1"]])) == [0, 0]
