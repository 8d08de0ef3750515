"""Cutting and placing: stages, devices, distances, and every way to cut wrongly."""

from __future__ import annotations

import pytest

from petra_graph.compiler.lower import partition
from petra_graph.errors import Problem, SpecError
from tests.support.pipelines import BRANCHES, CHAIN, built_graph

CPU = ("cpu",)


def refused(nodes, stages) -> list[Problem]:
    with pytest.raises(SpecError) as caught:
        partition(built_graph(nodes), stages, CPU)
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("count", "devices", "expected"),
    [
        (5, ("a",), "a a a a a"),
        (5, ("a", "b"), "a a a b b"),
        (5, ("a", "b", "c"), "a a b b c"),
        (5, ("a", "b", "c", "d", "e"), "a b c d e"),
        (5, ("a", "b", "a"), "a a b b a"),
        (3, ("a", "b", "c", "d"), "a b c"),
    ],
)
def test_consecutive_stages_share_a_device(count, devices, expected):
    names = [node.name for node in CHAIN]
    stages = (*[(name,) for name in names[: count - 1]], tuple(names[count - 1 :]))
    placed = partition(built_graph(CHAIN), stages, devices).stages
    assert " ".join(stage.device for stage in placed) == expected


def test_stages_that_read_one_another():
    """Both cuts are convex, and yet each of the two stages needs the other first."""
    stages = (("stem",), ("left0", "join"), ("left1", "right"), ("head",))
    assert [problem.message for problem in refused(BRANCHES, stages)] == [
        'stage 2 reads "left1" of stage 3, a later one',
        'stage 2 reads "right" of stage 3, a later one',
    ]


def test_all_problems_of_listed_stages_are_reported_at_once():
    assert [problem.message for problem in refused(CHAIN, ((), ("stem", "x"), ("stem", "head")))] == [
        "stage 1 is empty",
        'stage 2 names "x", which is not a node',
        'node "stem" is in stages 2 and 3',
        "no stage holds rev0, rev1, rev2",
    ]
