"""Cuts and places of whole networks: what the search finds, and the memory model has accepted."""

from __future__ import annotations

from functools import partial

import pytest
from attrs import evolve

from petra_graph.compiler.lower import partition, per_block
from petra_graph.compiler.placement_search import cut_and_place, place_stages
from petra_graph.compiler.prediction import Prediction
from petra_graph.errors import NoFeasiblePlan
from tests.support.costs import costs
from tests.support.pipelines import BRANCHES, CHAIN, SKIP, built_graph
from tests.support.settings import setting
from tools.bench.placements import all_cuts


def predict(used, made, schedule):
    return Prediction(inputs=used, placement=evolve(made, schedule=schedule))


def by_hand(used, stages=None):
    return place_stages(used, partition(used.graph, stages or per_block(used.graph), [""]))


def nodes_of(made):
    return [stage.nodes for stage in made.stages]


def held(used, made):
    """What each device holds, by the memory model."""
    return {name: one.total for name, one in used.device_memory(used.programs(made, made.schedule)).items()}


def test_work_decides_where_the_cut_is():
    # Units: stem 4, three reversible nodes of 4, the head 3.
    assert nodes_of(cut_and_place(setting(2), 2)) == [("stem", "rev0"), ("rev1", "rev2", "head")]
    heavy = setting(2, weights={"stem": 4.0})
    assert nodes_of(cut_and_place(heavy, 2)) == [("stem",), ("rev0", "rev1", "rev2", "head")]


def test_stages_share_devices_in_order():
    made = cut_and_place(setting(2), 4)
    assert len(made.stages) == 4
    assert [stage.device for stage in made.stages] == ["d0", "d0", "d1", "d1"]
    assert made.guarantee


def test_what_is_kept_together_is_in_one_stage():
    """The stem alone is by far the slowest; without the set, every cut into three has it so."""
    used = setting(3, weights={"stem": 9.0}, together=(("stem", "rev0", "rev1"),), memory=2**30)
    made = cut_and_place(used, 3)
    assert nodes_of(made) == [("stem", "rev0", "rev1"), ("rev2",), ("head",)]


def test_in_a_graph_the_rest_is_cut_as_well_as_it_can_be():
    """Every cut of the branches that has left0 and right in one stage, by the time model."""
    together = built_graph(BRANCHES).inseparable([("left0", "right")])
    used = setting(3, nodes=BRANCHES, table=costs(BRANCHES, (8,)), together=together, weights={"join": 4.0})
    made = cut_and_place(used, 3)
    ticks = {}
    for cut in all_cuts(used.graph, 3):
        if any({"left0", "right"} <= set(names) for names in cut):
            ticks[cut] = predict(used, by_hand(used, cut), "lockstep").timing.tick_seconds
    assert ticks[tuple(nodes_of(made))] == min(ticks.values())


@pytest.mark.parametrize(("nodes", "stages"), [(SKIP, 3), (BRANCHES, 3)])
def test_graphs_are_cut_so_that_stages_depend_on_earlier_ones_alone(nodes, stages):
    made = cut_and_place(setting(stages, nodes=nodes, table=costs(nodes, (8,))), stages)
    names = [name for stage in made.stages for name in stage.nodes]
    assert sorted(names) == sorted(node.name for node in nodes)
    assert made.stages[-1].nodes[-1] == "head"
    assert [stage.distance for stage in made.stages][-1] == 0


def test_memory_limits_are_kept_by_the_memory_model_too():
    free = setting(2, method="pipedream", accumulation=1)
    made = cut_and_place(free, 2)
    fullest = max(held(free, made).values())
    for share in (0.99, 0.9, 0.8):
        limit = int(share * fullest)
        tight = setting(2, method="pipedream", accumulation=1, memory=limit)
        try:
            found = cut_and_place(tight, 2)
        except NoFeasiblePlan:
            continue
        assert max(held(tight, found).values()) <= limit


def test_what_fits_nowhere_names_the_node_and_what_would_help():
    with pytest.raises(NoFeasiblePlan) as caught:
        cut_and_place(setting(2, memory=100), 2)
    (problem,) = caught.value.problems
    assert caught.value.exit_code == 3
    assert "would hold" in problem.message
    assert "may hold 100 bytes" in problem.message
    assert 'its largest node is "' in problem.message


@pytest.mark.parametrize("schedule", ["lockstep", "1f1b", "auto"])
@pytest.mark.parametrize(("devices", "stages"), [(1, 1), (2, 2), (3, 3), (2, 4), (5, 5)])
def test_a_limit_of_what_the_memory_model_finds_is_enough(devices, stages, schedule):
    free = setting(devices, schedule=schedule)
    needed = max(held(free, cut_and_place(free, stages)).values())
    tight = setting(devices, schedule=schedule, memory=needed)
    assert max(held(tight, cut_and_place(tight, stages)).values()) <= needed
    assert by_hand(tight, [stage.nodes for stage in cut_and_place(free, stages).stages])


def test_auto_keeps_the_speed_of_1f1b_and_is_no_staler():
    used = setting(5, schedule="auto", weights={"rev1": 3.0})
    made = by_hand(used)
    depths = made.schedule
    auto, usual = predict(used, made, depths), predict(used, made, "1f1b")
    assert auto.timing.tick_seconds <= usual.timing.tick_seconds * 1.001
    assert all(one <= other for one, other in zip(depths, (5, 4, 3, 2, 1), strict=True))
    assert sum(depths) < 15


def on(used, **speeds):
    """The setting with devices of other speeds."""
    (clock,) = set(used.clocks.values())
    clocks = {
        name: partial(lambda speed, node, operation: clock(node, operation) / speed, speed)
        for name, speed in speeds.items()
    }
    return evolve(used, clocks=clocks)


def test_unlike_devices_are_taken_in_the_best_order():
    # Units: the stem 32, everything else 15; the second device is four times as fast.
    used = on(setting(2, weights={"stem": 8.0}), d0=1.0, d1=4.0)
    stages = [("stem",), ("rev0", "rev1", "rev2", "head")]
    assert [stage.device for stage in by_hand(used, stages).stages] == ["d1", "d0"]
    made = cut_and_place(used, 2)
    assert predict(used, made, "lockstep").timing.tick_seconds == 10.0
    assert made.devices == used.devices


def test_more_unlike_devices_than_can_be_tried_in_all_orders_have_the_best_one():
    speeds = {f"d{place}": 1.0 + place for place in range(7)}
    nodes = [CHAIN[0], *(evolve(CHAIN[1], name=f"rev{index}") for index in range(12)), CHAIN[-1]]
    used = on(setting(7, nodes=nodes, table=costs(nodes, (8,)), weights={"stem": 20.0}), **speeds)
    made = cut_and_place(used, 7)
    assert made.stages[0].device == "d6"
