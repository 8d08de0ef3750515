"""Mistakes that authors of learning-rate schedules make, which show over a whole run."""

from __future__ import annotations

import math

import pytest
from petra_graph_conformance.examined_promises import examine
from petra_graph_conformance.kinds.lr_schedule import LrScheduleTrial

from petra_graph.plugins import LrScheduleDeclaration
from tests.support.plugin_of_each_kind import declared


def in_epochs(options, horizon):
    """A cosine of updates that counts epochs."""
    epochs = horizon.updates // horizon.updates_per_epoch
    return lambda u: (1 + math.cos(math.pi * min(1.0, u / epochs))) / 2


def early(options, horizon):
    """As `in_epochs`, but for its last value."""
    factor = in_epochs(options, horizon)
    return lambda u: max(0.1, factor(u))


def grows(options, horizon):
    return lambda u: 1 + 2 * u / horizon.updates


@pytest.mark.parametrize(
    ("schedule", "found"),
    [
        (in_epochs, "its factor is 0 at 54 of 60 updates, first at update 6"),
        (early, "its factor changes up to update 5 of 60, and stays at 0.1"),
        (grows, "its factor is 2.03 at update 31"),
    ],
)
def test_a_course_over_another_unit_is_a_doubt(schedule, found):
    trial = LrScheduleTrial.of(declared(LrScheduleDeclaration, schedule))
    outcome = next(one for one in examine(trial, leave_out=["no torch"]).outcomes if one.promise == "course")
    assert (outcome.status, found in outcome.found) == ("doubtful", True)
    assert outcome.remedy


def constant(options, horizon):
    return lambda u: 1.0


def steps(options, horizon):
    return lambda u: 0.1 ** (u * 10 // (horizon.updates * 3))


def one_cycle(options, horizon):
    return lambda u: 1 - abs(2 * u / horizon.updates - 1)


@pytest.mark.parametrize("schedule", [constant, steps, one_cycle])
def test_a_right_schedule_is_accepted(schedule):
    trial = LrScheduleTrial.of(declared(LrScheduleDeclaration, schedule))
    assert {one.promise: one.found for one in examine(trial, leave_out=["no torch"]).outcomes if one.found} == {}
