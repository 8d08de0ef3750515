"""Which method under which schedule."""

from __future__ import annotations

import pytest

from petra_graph.compiler.choice import method_and_schedule
from petra_graph.errors import Problem, SpecError
from petra_graph.spec.model import ClipSpec, MethodSpec


def refused(spec: MethodSpec, clip: ClipSpec | None = None) -> list[Problem]:
    with pytest.raises(SpecError) as caught:
        method_and_schedule(spec, clip)
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("name", "schedule", "expected"),
    [
        ("petra", None, "lockstep"),
        ("petra", "1f1b", "1f1b"),
        ("petra", "sequential", "sequential"),
        ("backprop", None, "sequential"),
    ],
)
def test_the_schedule_is_the_one_asked_for_or_the_methods_own(name, schedule, expected):
    method, chosen = method_and_schedule(MethodSpec(name=name, schedule=schedule), None)
    assert (method.name, chosen) == (name, expected)


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
    assert method_and_schedule(spec, GLOBAL)[1] == "sequential"


def test_both_faults_are_told_at_once():
    assert len(refused(MethodSpec(name="backprop", schedule="1f1b"), GLOBAL)) == 2
