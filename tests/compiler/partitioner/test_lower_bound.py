"""No cut's tick is below its bound, and on a chain whose devices do not wait the bound is the best cut's."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given

from petra_graph.compiler.partitioner.lower_bound import tick_bound
from petra_graph.compiler.partitioner.problem import DeviceBudget, Item, ItemEdge, PartitionProblem
from tests.support.examples import examples
from tests.support.partition_problems import all_cuts, all_orders, chain, plain_devices, problems


@examples(40)
@given(problems(most=7, branches=True, limits=False))
def test_no_cut_is_below(problem):
    every = (costs.tick_seconds for order in all_orders(problem) for costs in all_cuts(problem, order))
    assert tick_bound(problem) <= min(every)


@examples(40)
@given(problems(most=9, limits=False))
def test_the_bound_of_a_chain_is_its_best_cut(problem):
    links = [edge for edge, (a, b) in zip(problem.edges, problem.ends, strict=True) if b == a + 1]
    problem = attrs.evolve(problem, edges=links, objective="balanced")
    best = min(costs.tick_seconds for costs in all_cuts(problem))
    assert tick_bound(problem) == pytest.approx(best, rel=1e-9)


def test_unlike_devices_differ_by_item():
    # One device is fast at the first two items, the other one at the last.
    devices = [DeviceBudget(name="a", item_seconds=(1, 1, 9)), DeviceBudget(name="b", item_seconds=(5, 5, 2))]
    assert tick_bound(chain([0, 0, 0], devices)) == pytest.approx(2)


def test_a_device_does_no_more_work_in_branches_than_what_suits_it():
    """The last device is twice as fast at the last item alone, and was taken to be so at all: 2 in place of 2.5."""
    devices = [DeviceBudget(name="a", item_seconds=(2, 2, 2)), DeviceBudget(name="b", item_seconds=(2, 2, 1))]
    ends = [ItemEdge(producer=name, consumer="c") for name in "ab"]
    problem = PartitionProblem(items=[Item(name=name) for name in "abc"], edges=ends, devices=devices)
    assert tick_bound(problem) == pytest.approx(2.5)


def test_every_stage_adds_its_own_seconds():
    devices = [attrs.evolve(device, stage_seconds=3.0) for device in plain_devices(2)]
    assert tick_bound(chain([1, 1], devices)) == pytest.approx(4)


def test_a_slow_message_moves_the_bound():
    names = [Item(name=name, seconds=1) for name in "abcd"]
    edges = [
        ItemEdge(producer=a, consumer=b, forward_bytes=size)
        for a, b, size in (("a", "b", 1), ("b", "c", 8), ("c", "d", 1))
    ]
    problem = PartitionProblem(items=names, edges=edges, devices=plain_devices(2), link_bytes_per_second=1.0)
    assert tick_bound(problem) == pytest.approx(3)
