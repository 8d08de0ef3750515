"""Which method under which schedule, which depths, and what nodes may keep."""

from __future__ import annotations

import pytest

from petra_graph.compiler.spec_checks import check_depths, check_method, keep_problems
from petra_graph.errors import SpecError
from petra_graph.program.stage_program import Partition, Stage
from petra_graph.spec.model import ClipSpec, MethodSpec
from tests.support.pipelines import BRANCHES, CHAIN, built_graph, node

GLOBAL, SCHEDULE, SCOPE = (
    ClipSpec(limit=1.0, scope="global"),
    ("method", "schedule"),
    ("optimizer", "clip", "scope"),
)


@pytest.mark.parametrize(
    ("spec", "clip", "said", "path"),
    [
        (MethodSpec(name="petr"), None, 'unknown method "petr"\n.*did you mean \'petra\'', ("method", "name")),
        (MethodSpec(name="backprop", schedule="1f1b"), None, r'"backprop" runs under sequential \(got "1f1b"\)', SCHEDULE),
        (MethodSpec(name="backprop", schedule=(2, 1)), None, "has no delay", SCHEDULE),
        (MethodSpec(name="petra", schedule="fill-drain"), None, 'method "petra" runs under lockstep or 1f1b', SCHEDULE),
        (MethodSpec(name="gpipe", schedule="auto"), None, 'method "gpipe" runs under fill-drain', SCHEDULE),
        # Stages update at different times.
        (MethodSpec(schedule="1f1b"), GLOBAL, r'needs a synchronous schedule \(got "1f1b"\)', SCOPE),
        (MethodSpec(schedule="lockstep"), GLOBAL, r'needs a synchronous schedule \(got "lockstep"\)', SCOPE),
    ],
)  # fmt: skip
def test_choices_that_contradict_each_other(spec, clip, said, path):
    with pytest.raises(SpecError, match=said) as caught:
        check_method(spec, clip)
    assert [problem.path for problem in caught.value.problems] == [path]


@pytest.mark.parametrize("spec", [MethodSpec(name="backprop"), MethodSpec(schedule="sequential")])
def test_a_global_norm_where_all_gradients_are_there(spec):
    assert check_method(spec, GLOBAL)[1] == "sequential"


def stages_of(graph, distances) -> Partition:
    stages = [Stage(nodes=(name,), device="cpu", distance=d) for name, d in zip(graph.order, distances, strict=True)]
    return Partition(stages=tuple(stages))


@pytest.mark.parametrize(
    ("depths", "said"),
    [
        ((2, 1), "2 depths for 3 stages"),
        ((1, 2, 1), "stage 2 would wait for ever: its depth is 2, and stage 1, which feeds it, has 1"),
        ((3, 2, 2), "the last stage differentiates at once, so its depth is 1 (got 2)"),
    ],
)
def test_depths_that_would_wait_for_ever(depths, said):
    three = built_graph((CHAIN[0], node("rev", "rev-mlp", hidden=3), CHAIN[-1]))
    with pytest.raises(SpecError) as caught:
        check_depths(depths, three, stages_of(three, (2, 1, 0)))
    (problem,) = caught.value.problems
    assert problem.message == said
    assert "1f1b has [3, 2, 1] here" in problem.hint


def test_depths_are_compared_along_edges_not_in_the_order_of_the_list():
    """The right branch is shorter than the left one, so its stage runs fewer forwards ahead than the one listed next."""
    forked = built_graph(BRANCHES)
    stages = stages_of(forked, (4, 3, 2, 2, 1, 0))
    check_depths((5, 4, 3, 3, 2, 1), forked, stages)
    check_depths((5, 4, 3, 2, 2, 1), forked, stages)


def test_all_problems_of_what_nodes_keep():
    graph = built_graph(CHAIN)
    kept = {"rev0": "graph", "rev9": "input", "stem": "nothing", "head": "graph"}
    problems = list(keep_problems(MethodSpec(keep=kept), graph))
    assert [(problem.path[-1], problem.message) for problem in problems] == [
        ("rev9", '"rev9" is not a node'),
        ("stem", 'node "stem" is buffered, so it cannot reconstruct its input, and keep nothing'),
        ("head", 'node "head" is the head, which differentiates at once and keeps nothing'),
    ]
    assert "rev0" in problems[0].hint
    assert not list(keep_problems(MethodSpec(keep="auto"), graph))
