"""Learning-rate schedules, each wrong in one way: the promise that it breaks says so."""

from __future__ import annotations

import math
import random
import time

import pytest
from petra_graph_conformance import LrScheduleTrial

from petra_graph.plugins import Horizon, LrScheduleDeclaration
from tests.support.kit import PROMISES, kept
from tests.support.plugin_of_each_kind import broken, declared

OTHERS = ["no torch"]
"""These tests are in a module that imports torch."""


def remembers(options, horizon):
    last = [1.0]

    def factor(u):
        last[0] *= 0.99
        return last[0]

    return factor


def begins_once(options, horizon):
    begin = []

    def factor(u):
        begin.append(u)
        return 1.0 / (1 + u - begin[0] if u >= begin[0] else 1)

    return factor


def loops(options, horizon):
    """It goes over the updates before, where a run is long: a short one hides it."""
    return lambda u: float(sum(1 for _ in range(u if u == horizon.updates - 1 else 0)) >= 0)


def sleeps(options, horizon):
    def factor(u):
        if horizon.updates > 1000 and u == horizon.updates - 1:
            time.sleep(0.005)
        return 1.0

    return factor


def found_in(build, *leave_out):
    return broken(LrScheduleTrial.of(declared(LrScheduleDeclaration, build)), *leave_out)


def test_what_is_sound_passes():
    sound = declared(LrScheduleDeclaration, lambda _, horizon: lambda u: 1 - u / horizon.updates)
    report = kept(LrScheduleTrial.of(sound), leave_out=OTHERS)
    assert report.kept
    assert [one.status for one in report.outcomes] == ["kept"] * 7 + ["not checked"]
    one = [Horizon(updates=3, updates_per_epoch=1, warmup_updates=0)]
    kept(LrScheduleTrial.of(sound, horizons=one), leave_out=OTHERS)


@pytest.mark.parametrize(
    ("build", "promise", "found"),
    [
        (lambda _, horizon: None, "construction", "its build returns None, not a function of the update"),
        (lambda _, horizon: 1 / horizon.warmup_updates, "construction", "ZeroDivisionError"),
        (
            lambda _, horizon: lambda u: 1 - u,
            "finite",
            "its factor at update 2 is -1, not a finite number of at least 0",
        ),
        (lambda _, horizon: lambda u: math.inf if u == 59 else 1.0, "finite", "its factor at update 59 is inf"),
        (
            lambda _, horizon: lambda u: math.log(u - horizon.warmup_updates) if u > horizon.warmup_updates else None,
            "finite",
            "its factor at update 0 is None, not a number (of a run of 60 updates, 0 of warm-up)",
        ),
        (lambda _, horizon: lambda u: 1 / (horizon.updates - 1), "finite", "ZeroDivisionError"),
        (remembers, "pure", "asked again, in another order, its factor at update 0 is another one"),
        (begins_once, "pure", "built again and asked for update 59 first, its factor is another one"),
        (lambda _, horizon: lambda u: random.random(), "pure", "asked again, in another order"),
        (sleeps, "cheap", "its factor at update 449,999 takes "),
        (loops, "cheap", "its factor at update 449,999 takes "),
    ],
)
def test_it_is_caught(build, promise, found):
    assert found in found_in(build, *OTHERS)[promise]


def test_its_code_promises_not_to_import_torch():
    assert "no torch" in PROMISES["learning-rate schedule"]


@pytest.mark.parametrize(
    ("factor", "highest"),
    [
        (lambda u, horizon: 0.01, "its largest factor is 0.01, at update 0"),
        (lambda u, horizon: u // 10**9, "its largest factor is 0, at update 0"),
        (lambda u, horizon: (u + 1) / 10**9, "its largest factor is 6e-08, at update 59"),
        (lambda u, horizon: 1 - 0.2 * (u > 4), ""),
        (lambda u, horizon: 4.0 + u, ""),
        (lambda u, horizon: (u + 1) / horizon.updates, ""),
        (lambda u, horizon: 1 - (u + 1) / (horizon.updates + 1), ""),
    ],
)
def test_a_schedule_that_stays_far_below_1_is_a_doubt(factor, highest):
    build = declared(LrScheduleDeclaration, lambda _, horizon: lambda u: factor(u, horizon))
    doubts = kept(LrScheduleTrial.of(build), leave_out=["no torch", "course"]).doubtful
    assert [one.promise for one in doubts] == ["full rate"] * bool(highest)
    assert all(one.found.startswith(highest) for one in doubts)


# --- schedules that ask for their stage's facts -------------------------------------------------------------------------


def slower_where_late(options, horizon, stage):
    """At most 0.25 in a stage with a delay of 3 updates, of which the promise of a full rate does not speak."""
    assert stage.micro_batches == horizon.updates_per_epoch
    return lambda u: 1 / (1 + stage.steady)


def falls_with_the_delay(options, horizon, stage):
    return lambda u: 1 / (1 + stage.staleness_of_update(u))


def negative_where_late(options, horizon, stage):
    return lambda u: 1.0 - stage.staleness_of_update(u)


def test_a_schedule_that_asks_is_tried_without_delay_and_with():
    for sound in (slower_where_late, falls_with_the_delay):
        report = kept(LrScheduleTrial.of(declared(LrScheduleDeclaration, sound)), leave_out=OTHERS)
        assert [one.status for one in report.outcomes] == ["kept"] * 7 + ["not checked"]
    found = found_in(negative_where_late, *OTHERS)
    assert found.keys() == {"finite"}
    assert "its factor at update 2 is -1.0" in found["finite"]
    assert found["finite"].endswith("(in stage 1 of 4, with a delay of 3 updates)")


def test_a_low_rate_without_delay_is_doubtful_all_the_same():
    report = kept(
        LrScheduleTrial.of(declared(LrScheduleDeclaration, lambda options, horizon, stage: lambda u: 0.1)),
        leave_out=OTHERS,
    )
    assert [one.promise for one in report.doubtful] == ["full rate"]
