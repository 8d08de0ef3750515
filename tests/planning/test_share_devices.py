"""Replicas on the devices of a specification: the same samples an update, every divisor of the devices, and a plan that says if they are better."""

from __future__ import annotations

import pytest

from petra_graph.planning.check_spec import check_spec
from petra_graph.planning.plan_spec import Planner
from petra_graph.planning.share_devices import keys_to_set, other_uses
from tests.support.runs import SPEC


@pytest.fixture
def spec(write):
    path = write("small.toml", SPEC)
    return lambda *overrides: check_spec(path, overrides).spec


def samples(spec):
    return spec.data.batch * spec.method.accumulation * spec.partition.replicas


@pytest.mark.parametrize(
    ("accumulation", "batch", "found"),
    [
        (4, 8, {2: (2, 8), 4: (1, 8)}),
        (2, 8, {2: (1, 8), 4: (1, 4)}),
        (1, 8, {2: (1, 4), 4: (1, 2)}),
        (6, 8, {2: (3, 8), 4: (3, 4)}),
        (1, 2, {2: (1, 1)}),
        (1, 1, {}),
    ],
)
def test_an_update_averages_the_same_samples(spec, accumulation, batch, found):
    given = spec("partition.devices=4", f"method.accumulation={accumulation}", f"data.batch={batch}")
    variants = [one for one in other_uses(given) if one.partition.replicas > 1]
    assert {samples(one) for one in variants} <= {samples(given)}
    assert {one.partition.replicas: (one.method.accumulation, one.data.batch) for one in variants} == found
    assert all(one.partition.devices * one.partition.replicas == 4 for one in variants)


def test_what_to_set(spec):
    given = spec("partition.devices=4", "partition.stages=4", "method.accumulation=4")
    whole = next(one for one in other_uses(given) if one.partition.replicas == 4)
    assert keys_to_set(given, whole) == [
        'method.name = "backprop"',
        'method.schedule = "sequential"',
        "method.accumulation = 1",
        "partition.replicas = 4",
        "partition.stages = 1",
        "partition.devices = 1",
    ]


ON_FOUR = ("partition.devices=4", "partition.device_type=h100", "method.accumulation=4")


def test_a_plan_names_replicas_that_are_faster_and_no_later(write):
    path = write("small.toml", SPEC)
    planner = Planner(path, ON_FOUR)
    (said,) = [text for text in planner.advised().as_json()["warnings"] if "replicas of the whole" in text]
    assert said.startswith("4 replicas of the whole network with backprop would be ")
    assert 'set method.name = "backprop"; ' in said
    words = [text.strip() for text in said.partition(": set ")[2].split(";")]
    overrides = [text.replace(" = ", "=") for text in words]
    better = Planner(path, (*ON_FOUR, *overrides))
    assert not [text for text in better.advised().as_json()["warnings"] if "as fast" in text]
    alone = Planner(path, ("partition.device_type=h100",)).advised().as_json()
    assert not [text for text in alone["warnings"] if "as fast" in text]
