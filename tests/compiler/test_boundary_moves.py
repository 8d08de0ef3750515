"""Stages move between neighbouring devices, one at a time, until each device keeps its limit."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from attrs import evolve

from petra_graph.compiler.boundary_moves import moved_until_fits
from petra_graph.compiler.listed_stages import partition, per_block
from petra_graph.compiler.placement_search import place_stages
from petra_graph.errors import NoFeasiblePlan
from petra_graph.program.placement import Partition, Stage
from tests.support.costs import costs
from tests.support.pipelines import REVNET, SHAPES
from tests.support.settings import setting


def stages_on(hosts):
    return tuple(Stage(nodes=(str(index),), device=host, distance=0) for index, host in enumerate(hosts))


def hosts(stages):
    return "".join(stage.device for stage in stages)


def most_on_a_device(limit):
    return lambda stages: max(Counter(hosts(stages)).values()) / limit


def test_what_fits_stays():
    assert hosts(moved_until_fits(stages_on("aabb"), most_on_a_device(2))) == "aabb"


def test_one_stage_after_another_moves():
    assert hosts(moved_until_fits(stages_on("aaaaabbbbc"), most_on_a_device(4))) == "aaaabbbbcc"


def test_every_device_keeps_a_stage():
    assert moved_until_fits(stages_on("ab"), most_on_a_device(0.9)) is None


def test_what_is_far_too_full_is_given_up_at_once():
    asked = []
    assert moved_until_fits(stages_on("aabb"), lambda stages: asked.append(stages) or 2.0) is None
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("method", "schedule"), [("petra", "1f1b"), ("gpipe", "fill-drain"), ("reversible-backprop", "sequential")]
)
@pytest.mark.parametrize("objective", ["balanced", "memory"])
def test_the_least_limit_that_some_placement_keeps_is_kept(method, schedule, objective):
    """Near the tightest limits the solver's sums rank placements otherwise than the memory model, and refused some."""
    table = costs(REVNET, SHAPES["revnet"])
    common = {"method": method, "schedule": schedule, "accumulation": 2, "nodes": REVNET, "table": table}
    used = setting(3, **common)
    stages = partition(used.graph, per_block(used.graph), ["alone"])

    def fullest(placed):
        return max(held.total for held in used.device_memory(used.programs(placed, schedule)).values())

    least = min(
        fullest(Partition(stages=tuple(evolve(one, device=f"d{place}") for place, one in placed)))
        for first, second in combinations(range(1, len(stages.stages)), 2)
        for placed in [
            [((index >= first) + (index >= second), stage) for index, stage in enumerate(stages.stages)],
        ]
    )
    made = place_stages(setting(3, memory=least, **common), stages, objective)
    assert fullest(made) == least
    with pytest.raises(NoFeasiblePlan):
        place_stages(setting(3, memory=least - 1, **common), stages, objective)
