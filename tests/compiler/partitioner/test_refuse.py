"""Nothing fits: what binds, and only remedies that were tried and work."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings

from petra_graph.compiler.partitioner.problem import DepthRule, DeviceBudget, Item, ItemEdge, PartitionProblem
from petra_graph.compiler.partitioner.search import find
from petra_graph.compiler.partitioner.solver import place, solve
from petra_graph.errors import NoFeasiblePlan, Problem
from tests.compiler.partitioner.tasks import tasks

MIB = 1 << 20


def task(*sizes: tuple[int, int], limit: int, devices: int = 2, **more) -> PartitionProblem:
    """A chain of items with resident and buffered MiB."""
    items = [
        Item(name=f"n{index}", seconds=1, resident_bytes=kept * MIB, buffer_bytes=stored * MIB)
        for index, (kept, stored) in enumerate(sizes)
    ]
    wires = [ItemEdge(producer=f"n{index}", consumer=f"n{index + 1}") for index in range(len(items) - 1)]
    hosts = [DeviceBudget(name=f"gpu{index}", memory_bytes=limit * MIB) for index in range(devices)]
    return PartitionProblem(items=items, wires=wires, devices=hosts, **more)


def refused(what: PartitionProblem, alternatives=None) -> Problem:
    with pytest.raises(NoFeasiblePlan) as caught:
        solve(what, alternatives)
    assert caught.value.exit_code == 3
    (problem,) = caught.value.problems
    return problem


def test_a_node_that_no_device_can_hold():
    problem = refused(task((1, 0), (9, 3), (1, 0), limit=10, devices=3))
    assert problem.message == (
        'no device can hold node "n1"; it needs 12.00 MiB by itself, and the largest limit is 10.00 MiB'
    )
    # More devices do not help; half the micro-batch leaves 9 + 1.5, a quarter 9 + 0.75.
    assert problem.hint == "it fits with micro-batches of 1/4 the size"


def test_too_much_in_all():
    problem = refused(task((5, 0), (5, 0), (5, 0), (5, 0), limit=8))
    assert problem.message == (
        "nothing found keeps the limits of 2 devices: even where the fullest has as little as can be, "
        'device "gpu0" needs 10.00 MiB of 8.00 MiB; its largest node is "n0" with at least 5.00 MiB'
    )
    assert problem.hint == "it fits with 4 devices"


def test_remedies_of_the_caller_are_tried_too():
    deep = task((1, 4), (1, 0), (1, 0), limit=10, devices=3, ahead=DepthRule(schedule="lockstep"))
    alternatives = {
        "schedule = 1f1b": attrs.evolve(deep, ahead=DepthRule(schedule="1f1b")),
        "schedule = sequential": attrs.evolve(deep, ahead=DepthRule(schedule="sequential")),
    }
    # Depth 5, 3, 1 times 4, and 1.
    problem = refused(deep, alternatives)
    assert problem.hint == "it fits with micro-batches of 1/4 the size or schedule = sequential"


def test_nothing_helps():
    problem = refused(task((9, 0), (1, 0), limit=8))
    assert problem.hint.startswith("nothing tried helps: micro-batches of 1/2 the size, ")


def test_stages_that_cannot_be_placed_are_named_by_their_number():
    parts = task((5, 0), (5, 0), (1, 0), limit=8)
    with pytest.raises(NoFeasiblePlan, match='no device can hold node "stage 1"'):
        place(parts, [["n0", "n1"], ["n2"]])


@settings(max_examples=40, deadline=None)
@given(tasks(most=7))
def test_the_error_names_what_works(what):
    if find(what) is not None:
        return
    free = attrs.evolve(what, devices=[attrs.evolve(device, memory_bytes=None) for device in what.devices])
    problem = refused(what, {"no limits": free, "the same": what})
    assert problem.hint.endswith("no limits")
    assert "the same" not in problem.hint
