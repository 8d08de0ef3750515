"""How sure a plan is: what the spread of a profile leaves open of its tick and its method."""

from __future__ import annotations

import pytest
from attrs import evolve

from petra_graph.planning.plan_spec import Planner
from petra_graph.planning.predict_plan import tick_interval
from petra_graph.profiling.node_profile import profile
from petra_graph.program.node_costs import OPERATIONS
from petra_graph.record.profile_files import read_profile, write_profile
from petra_graph.report.plan.plan_answers import answers
from tests.support.runs import SPEC

TWO = (
    "partition.stages=2",
    "partition.devices=2",
    "partition.device_type=cpu",
    "partition.profile=p.json",
    "method.schedule=1f1b",
)
FREE = ("partition.link_latency=0", "partition.link_bandwidth=1e30")
MS = 1e-3


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile")
    (folder / "small.toml").write_text(SPEC)
    return profile(str(folder / "small.toml"), (), 2)


@pytest.fixture
def planned(taken, write, here):
    """Plan the four nodes with a millisecond for each of their operations, and with the spread of each node in milliseconds."""

    def planned(spread, *overrides, **medians):
        kinds = {"stem": "buffered", "rev.0": "reversible", "rev.1": "reversible", "head": "head"}
        nodes = {name: {each: medians.get(name, 1) * MS for each in OPERATIONS[kind]} for name, kind in kinds.items()}
        ends = {name: tuple(end * MS for end in spread.get(name, (1, 1))) for name in kinds}
        spreads = {name: dict.fromkeys(nodes[name], ends[name]) for name in kinds} if spread else {}
        write_profile(here / "p.json", evolve(taken, nodes=nodes, spread=spreads, outside=0.0))
        return Planner(write("small.toml", SPEC), [*TWO, *FREE, *overrides])

    return planned


def found(planner):
    plan = planner.plan()
    return plan, plan.document(with_timeline=False)["certainty"]


def test_a_profile_has_the_spread_of_every_operation(taken, here):
    assert taken.spread.keys() == taken.nodes.keys()
    for name, operations in taken.nodes.items():
        assert taken.spread[name].keys() == operations.keys()
        for operation, median in operations.items():
            low, high = taken.spread[name][operation]
            assert 0 <= low <= median <= high
    write_profile(here / "p.json", taken)
    assert read_profile(here / "p.json") == taken


def test_a_tick_lies_between_all_fast_and_all_slow(planned):
    everywhere = dict.fromkeys(("stem", "rev.0", "rev.1", "head"), (0.5, 2))
    plan = planned(everywhere).plan()
    middle = plan.prediction.timing.tick_seconds
    assert tick_interval(plan.prediction, plan.network) == pytest.approx((middle / 2, 2 * middle))


def test_without_a_spread_nothing_is_said_of_the_tick(planned):
    """An older profile has none."""
    document = planned({}).plan().document(with_timeline=False)
    assert (document["certainty"]["tick_low_seconds"], document["certainty"]["tick_high_seconds"]) == (None, None)
    assert answers(document)[-1].value.startswith("measured in a profile of")


def test_memory_to_spare(planned):
    plan, sure = found(planned({}, "partition.memory=1GiB"))
    assert sure["spare_bytes"] == 2**30 - max(held.total for held in plan.prediction.device_memory.values())
    assert found(planned({}))[1]["spare_bytes"] is None, "how much a CPU has is not known"
