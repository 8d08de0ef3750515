"""The number of stages that a specification leaves open."""

from __future__ import annotations

import pytest
from attrs import evolve

from petra_graph.compiler import placement_search
from petra_graph.compiler.placement_search import ABOUT_AS_FAST, cut_and_place, cut_into_fewest
from petra_graph.errors import NoFeasiblePlan
from tests.compiler.test_placement_search import held, nodes_of, predict
from tests.support.settings import setting


def test_a_device_that_makes_nothing_faster_stays_idle():
    """Units: the stem 40, everything else 15 together; no number of stages is faster than two."""
    made = cut_into_fewest(setting(5, weights={"stem": 10.0}))
    assert nodes_of(made) == [("stem",), ("rev0", "rev1", "rev2", "head")]
    assert made.notes == (
        'partition.stages = "auto": 2 stages for 40 s a micro-batch; 1 would take at least 55 s; 3 would take at least 40 s',
    )


def test_a_bound_above_the_tick_of_the_best_number_does_no_harm(monkeypatch):
    """`plan --compare` of RevNet50 on 8 devices ended in a traceback: nodes that share a stage took less than apart."""
    bounds = placement_search._least_seconds
    monkeypatch.setattr(
        placement_search, "_least_seconds", lambda inputs: {k: 1.2 * v for k, v in bounds(inputs).items()}
    )
    assert len(cut_into_fewest(setting(5, weights={"stem": 10.0})).stages) == 2


def test_what_is_kept_together_leaves_fewer_stages():
    made = cut_into_fewest(setting(5, together=(("rev0", "rev1"), ("rev2", "head"))))
    assert nodes_of(made) == [("stem",), ("rev0", "rev1"), ("rev2", "head")]


@pytest.mark.parametrize("schedule", ["lockstep", "1f1b", "auto"])
@pytest.mark.parametrize("heavy", [1.0, 2.0, 4.0])
def test_it_is_the_fewest_of_all_that_are_about_as_fast(schedule, heavy):
    used = setting(4, schedule=schedule, weights={"rev1": heavy})
    ticks = []
    for stages in range(1, 5):
        made = cut_and_place(used, stages)
        ticks.append(predict(used, made, made.schedule).timing.tick_seconds)
    fewest = next(stages for stages, seconds in enumerate(ticks, start=1) if seconds <= ABOUT_AS_FAST * min(ticks))
    assert len(cut_into_fewest(used).stages) == fewest


def test_numbers_that_do_not_fit_are_left_out():
    free = setting(4)
    (most,) = held(free, cut_and_place(free, 1)).values()
    tight = setting(4, memory=most - 1)
    assert len(cut_into_fewest(tight).stages) > 1
    with pytest.raises(NoFeasiblePlan, match="would hold"):
        cut_into_fewest(evolve(tight, devices=tuple(evolve(one, memory_bytes=1) for one in tight.devices)))
