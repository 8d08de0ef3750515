"""Graphs with branches: stages that form an acyclic graph, and what is promised of how good they are."""

from __future__ import annotations

from operator import attrgetter

import attrs
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.compiler.listed_stages import partition
from petra_graph.compiler.partitioner.interval_costs import cut_costs
from petra_graph.compiler.partitioner.problem import DepthRule, DeviceBudget, Item, ItemEdge, PartitionProblem
from petra_graph.compiler.partitioner.search import find
from petra_graph.compiler.partitioner.topological_orders import has_one_order, orders
from tests.support.examples import examples
from tests.support.graph_strategies import networks
from tests.support.partition_problems import all_cuts, all_orders, plain_devices, problems
from tests.support.pipelines import built_graph


def branches(devices: int, **problem) -> PartitionProblem:
    """Two arms of three items each, listed in turns: a0 b0 a1 b1 a2 b2."""
    items = [Item(name="stem", seconds=1)]
    items += [Item(name=f"{arm}{index}", seconds=2, resident_bytes=1) for index in range(3) for arm in "ab"]
    items += [Item(name="join", seconds=1)]
    edges = [ItemEdge(producer="stem", consumer=f"{arm}0", forward_bytes=8) for arm in "ab"]
    edges += [
        ItemEdge(producer=f"{arm}{index}", consumer=f"{arm}{index + 1}", forward_bytes=8)
        for arm in "ab"
        for index in range(2)
    ]
    edges += [ItemEdge(producer=f"{arm}2", consumer="join", forward_bytes=1) for arm in "ab"]
    return PartitionProblem(items=items, edges=edges, devices=plain_devices(devices), **problem)


@examples(50)
@given(problems(most=9, branches=True))
def test_stages_are_sound(problem):
    found = find(problem)
    if found is None:
        return
    stages = found.stages
    place = {name: index for index, stage in enumerate(stages) for name in stage.items}
    assert sorted(place) == sorted(item.name for item in problem.items)
    assert sum(len(stage.items) for stage in stages) == len(problem.items)
    assert len(stages) == problem.stage_count
    assert all(stage.items for stage in stages)
    assert all(place[edge.producer] <= place[edge.consumer] for edge in problem.edges)
    devices = [stage.device for stage in stages]
    assert devices == sorted(devices)
    assert set(devices) == set(range(len(problem.devices)))
    assert all(used <= limit for used, limit in zip(found.device_bytes, problem.limits, strict=True))
    assert found == cut_costs(problem, [[problem.index[name] for name in stage.items] for stage in stages], devices)


@examples(40)
@given(problems(most=6, branches=True))
def test_no_cut_is_better_than_the_best_and_that_of_the_tried_orders_is_found(problem):
    found = find(problem)
    free = attrs.evolve(problem, objective="balanced")
    every = [costs for order in all_orders(problem) for costs in all_cuts(problem, order)]
    if not every:
        assert found is None
        return
    if found is None:  # Distances at most the place from the end: a cut may look too full that is not.
        assert not has_one_order(problem)
        return
    value = attrgetter("tick_seconds" if problem.objective == "balanced" else "peak_bytes")
    assert min(map(value, every)) <= value(found)
    if all(device.memory_bytes is None for device in problem.devices):
        tried = [costs.tick_seconds for order in orders(problem) for costs in all_cuts(free, order)]
        assert find(free).tick_seconds == min(tried)


@given(problems(most=8, branches=True))
def test_every_order_is_topological_and_there_once(problem):
    tried = orders(problem)
    assert len(set(tried)) == len(tried)
    for order in tried:
        assert sorted(order) == list(range(len(problem.items)))
        assert all(order.index(a) < order.index(b) for a, b in problem.ends)
    assert (len(set(all_orders(problem))) == 1) == has_one_order(problem)


def test_arms_are_not_cut_in_turns():
    """The listed order alternates between the arms; cut in the middle it would send both on."""
    found = find(branches(2))
    assert found.tick_seconds == 7
    assert found.channel_bytes == 8 + 1
    assert {len({name[0] for name in stage.items if name[0] in "ab"}) for stage in found.stages} == {1}


def test_distances_are_longest_paths():
    problem = branches(4, depth_rule=DepthRule(schedule="1f1b"))
    arms = [[0], [1, 3, 5], [2, 4, 6], [7]]
    costs = cut_costs(problem, arms, range(4))
    assert [stage.distance for stage in costs.stages] == [2, 1, 1, 0]
    assert [problem.depth_rule.depth(stage.distance) for stage in costs.stages] == [3, 2, 2, 1]


def test_a_limit_that_only_real_distances_keep_is_kept():
    items = [
        Item(name="stem", buffer_bytes=6),
        Item(name="left", buffer_bytes=4),
        Item(name="right", buffer_bytes=4),
        Item(name="join"),
    ]
    edges = [ItemEdge(producer=a, consumer=b) for a, b in (("stem", "left"), ("stem", "right"), ("left", "join"))]
    edges.append(ItemEdge(producer="right", consumer="join"))
    # Counted by its place from the end the stem would store 4 inputs, and one arm 3; really 3 and 2.
    limits = [DeviceBudget(name=f"d{index}", memory_bytes=size) for index, size in enumerate((18, 8, 8, 8))]
    problem = PartitionProblem(items=items, edges=edges, devices=limits, depth_rule=DepthRule(schedule="1f1b"))
    assert find(problem).device_bytes == (18, 8, 8, 0)


def test_messages_that_pass_over_a_device_cost_it_nothing():
    items = [Item(name=name, seconds=1) for name in "abc"]
    edges = [ItemEdge(producer=a, consumer=b, forward_bytes=size) for a, b, size in (("a", "b", 1), ("b", "c", 2))]
    edges.append(ItemEdge(producer="a", consumer="c", forward_bytes=4))
    problem = PartitionProblem(items=items, edges=edges, devices=plain_devices(3), link_bytes_per_second=1.0)
    assert find(problem).device_seconds == (5, 2, 6)
    assert find(problem).channel_bytes == 7


@examples(50)
@given(networks(), st.data())
def test_networks_are_cut_as_the_compiler_accepts(nodes, data):
    graph = built_graph(nodes)
    names = graph.order
    problem = PartitionProblem(
        items=[Item(name=name, seconds=data.draw(st.integers(0, 5))) for name in names],
        edges=[
            ItemEdge(producer=producer, consumer=consumer, forward_bytes=1)
            for producer, consumer in graph.digraph.edges
        ],
        devices=plain_devices(data.draw(st.integers(1, min(3, len(names))))),
        stages=None,
    )
    stages = find(problem).stages
    accepted = partition(graph, [stage.items for stage in stages], [device.name for device in problem.devices])
    assert [stage.nodes for stage in accepted.stages] == [stage.items for stage in stages]
    assert [stage.distance for stage in accepted.stages] == [stage.distance for stage in stages]
    assert accepted.stages[-1].nodes[-1] == graph.head
