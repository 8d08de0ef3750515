"""Which method under which schedule."""

from __future__ import annotations

import pytest

from petra_graph.compiler.spec_checks import check_depths, check_method, keep_problems
from petra_graph.errors import Problem, SpecError
from petra_graph.program.stage_program import Partition, Stage
from petra_graph.spec.model import ClipSpec, MethodSpec
from tests.support.pipelines import BRANCHES, CHAIN, built_graph, node


def refused(spec: MethodSpec, clip: ClipSpec | None = None) -> list[Problem]:
    with pytest.raises(SpecError) as caught:
        check_method(spec, clip)
    return list(caught.value.problems)


def test_an_unknown_method():
    (problem,) = refused(MethodSpec(name="petr"))
    assert problem.message == 'unknown method "petr"'
    assert problem.hint.startswith("did you mean 'petra'? allowed: ")
    assert problem.path == ("method", "name")


def test_a_schedule_that_makes_it_another_method():
    assert refused(MethodSpec(name="backprop", schedule="1f1b")) == [
        Problem(
            message='method "backprop" runs under sequential (got "1f1b")',
            hint='leave out `schedule`, or set schedule = "sequential"',
            path=("method", "schedule"),
        )
    ]


GLOBAL = ClipSpec(limit=1.0, scope="global")


@pytest.mark.parametrize("schedule", ["1f1b", "lockstep"])
def test_no_global_norm_where_stages_update_at_different_times(schedule):
    assert refused(MethodSpec(schedule=schedule), GLOBAL) == [
        Problem(
            message=f'scope = "global" needs a synchronous schedule (got "{schedule}")',
            hint="asynchronous stages update at different times, so no global norm exists when one steps; "
            'set scope = "stage", or method.schedule = "sequential"',
            path=("optimizer", "clip", "scope"),
        )
    ]


@pytest.mark.parametrize("spec", [MethodSpec(name="backprop"), MethodSpec(schedule="sequential")])
def test_a_global_norm_where_all_gradients_are_there(spec):
    assert check_method(spec, GLOBAL)[1] == "sequential"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (MethodSpec(name="backprop", schedule=(2, 1)), "has no delay"),
        (MethodSpec(name="petra", schedule="fill-drain"), 'method "petra" runs under lockstep or 1f1b'),
        (MethodSpec(name="gpipe", schedule="auto"), 'method "gpipe" runs under fill-drain'),
    ],
)
def test_schedules_that_contradict_the_method(spec, said):
    (problem,) = refused(spec)
    assert said in problem.message
    assert problem.path == ("method", "schedule")


def stages_of(graph, distances) -> Partition:
    stages = [Stage(nodes=(name,), device="cpu", distance=d) for name, d in zip(graph.order, distances, strict=True)]
    return Partition(stages=tuple(stages))


THREE_NODES = (
    node("stem", "linear-stem", features=4),
    node("rev", "rev-mlp", hidden=3),
    node("head", "pool-linear", outputs=5),
)
THREE = built_graph(THREE_NODES)
FORKED = built_graph(BRANCHES)


@pytest.mark.parametrize(
    ("depths", "said"),
    [
        ((2, 1), "2 depths for 3 stages"),
        ((1, 2, 1), "stage 2 would wait for ever: its depth is 2, and stage 1, which feeds it, has 1"),
        ((3, 2, 2), "the last stage differentiates at once, so its depth is 1 (got 2)"),
    ],
)
def test_depths_that_would_wait_for_ever(depths, said):
    with pytest.raises(SpecError) as caught:
        check_depths(depths, THREE, stages_of(THREE, (2, 1, 0)))
    (problem,) = caught.value.problems
    assert problem.message == said
    assert "1f1b has [3, 2, 1] here" in problem.hint


def test_depths_are_compared_along_edges_not_in_the_order_of_the_list():
    """The right branch is shorter than the left one, so its stage runs fewer forwards ahead than the one listed next."""
    distances = dict(zip(FORKED.order, (4, 3, 2, 2, 1, 0), strict=True))
    depths = tuple(distances[name] + 1 for name in FORKED.order)
    check_depths(depths, FORKED, stages_of(FORKED, distances.values()))
    uneven = tuple(
        3 if name == "left1" else 2 if name == "right" else depth
        for name, depth in zip(FORKED.order, depths, strict=True)
    )
    check_depths(uneven, FORKED, stages_of(FORKED, distances.values()))


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
