"""Memory limits hold for the devices that do the work: a plan's, those that are present, or a run's processes."""

from __future__ import annotations

from functools import cache

import pytest

from petra_graph.errors import NoFeasiblePlan, SpecError
from petra_graph.planning.check_spec import check_spec
from petra_graph.planning.network import measure
from petra_graph.planning.place_network import place_network, place_on_present, place_on_processes, planned_devices
from petra_graph.planning.plan_spec import Estimate
from tests.support import ROOT

QUICKSTART = str(ROOT / "specs" / "quickstart.toml")
MEASURED = 4.11 * 2**20
"""Bytes of the quickstart on one device, by `tools/bench/memory.py`."""


@cache
def quickstart():
    return measure(check_spec(QUICKSTART))


def network(*overrides):
    return quickstart().variant(check_spec(QUICKSTART, overrides).spec)


def devices_of(network):
    return planned_devices(network.spec.partition)


def held(network, placement):
    return Estimate.of(network, placement).peaks


def test_a_limit_above_what_a_run_holds_refuses_nothing():
    """The quickstart holds 4.1 MiB on one device; its stages' peaks add up to 9.1 MiB, and 6 MiB were refused."""
    enough = network("partition.memory=6MiB")
    (holds,) = held(enough, place_network(enough, devices_of(enough))).values()
    assert holds == pytest.approx(MEASURED, rel=0.02)
    short = network("partition.memory=4MiB")
    with pytest.raises(
        NoFeasiblePlan, match=r'device "cpu" would hold 4\.11 MiB, .* more than the 4 MiB that it may hold'
    ):
        place_network(short, devices_of(short))


def test_processes_are_judged_as_processes():
    """Four processes were judged as the one planned device first, which refused them, and without limits afterwards."""
    found = network("partition.memory=3MiB")
    with pytest.raises(NoFeasiblePlan):
        place_network(found, devices_of(found))
    placement = place_on_processes(found, 4)
    assert [device.memory_bytes for device in placement.devices] == [3 * 2**20] * 4
    assert len(held(found, placement)) == 4
    assert max(held(found, placement).values()) <= 3 * 2**20
    short = network("partition.memory=1MiB")
    with pytest.raises(NoFeasiblePlan, match=r'device "rank [0-3]" would hold') as caught:
        place_on_processes(short, 4)
    assert "partition.devices" not in (caught.value.problems[0].hint or "")


@pytest.mark.parametrize("stages", ['partition.stages="per-block"', "partition.stages=4"])
def test_processes_change_no_stage(stages):
    roomy = network(stages)
    planned = place_network(roomy, devices_of(roomy)).stages
    found = network(stages, "partition.memory=4MiB")
    for processes in (2, 3, 4):
        placement = place_on_processes(found, processes)
        assert [stage.nodes for stage in placement.stages] == [stage.nodes for stage in planned]
        assert len({stage.rank for stage in placement.stages}) == processes


def test_as_many_processes_as_devices_keep_the_devices_limits():
    apart = ("partition.devices=2", "partition.memory=['4MiB', '2MiB']")
    placement = place_on_processes(network(*apart), 2)
    assert [device.memory_bytes for device in placement.devices] == [4 * 2**20, 2 * 2**20]
    with pytest.raises(NoFeasiblePlan):
        place_on_processes(network("partition.devices=2", "partition.memory=['2MiB', '2MiB']"), 2)


@pytest.mark.parametrize("devices", [1, 3])
def test_a_process_without_a_stage_is_refused(devices):
    with pytest.raises(SpecError, match="3 processes cannot share 2 stages"):
        place_on_processes(network("partition.stages=2", f"partition.devices={devices}"), 3)


def test_the_depth_of_the_only_stage_is_one():
    found = network("partition.stages=1", "method.schedule=[3]")
    with pytest.raises(SpecError, match="the last stage differentiates at once"):
        place_network(found, devices_of(found))


def test_the_only_present_device_is_judged_with_all_stages():
    """Two planned devices with 4 MiB each were accepted, and then one device ran all stages, whatever it might hold."""
    found = network("partition.devices=2", "partition.memory=4MiB")
    assert len(place_network(found, devices_of(found)).devices) == 2
    with pytest.raises(NoFeasiblePlan, match=r'device "cpu" would hold 4\.11 MiB'):
        place_on_present(found, ("cpu",))
    enough = network("partition.devices=2", "partition.memory=5MiB")
    assert {stage.device for stage in place_on_present(enough, ("cpu",)).stages} == {"cpu"}
    tight = network("partition.devices=2", "partition.memory=1MiB")
    with pytest.raises(NoFeasiblePlan):
        place_on_present(tight, ("cpu",))


TINY = [
    "partition.device_type=tiny",
    "partition.device.tiny={kind='cuda', float32_flops=1e12, memory_bandwidth=1e11, memory='SIZE', link_latency=0, link_bandwidth=1e10}",
]


def tiny(size, *more):
    return network(*(text.replace("SIZE", size) for text in TINY), *more)


def test_what_a_device_has_is_a_limit_as_a_stated_one():
    """A plan of more than that was given with exit code 0, and advised another schedule."""

    def refusal(found):
        with pytest.raises(NoFeasiblePlan) as caught:
            place_network(found, devices_of(found))
        return [(problem.message, problem.hint) for problem in caught.value.problems]

    told = refusal(tiny("34MiB"))
    assert told == refusal(tiny("34MiB", "partition.memory=34MiB"))
    assert "more than the 34 MiB that it may hold" in told[0][0]
    assert told[0][1].startswith("take smaller batches, more devices")
