"""What is known of a run before it trains, and no plan says."""

from __future__ import annotations

import os

import pytest

from petra_graph.training.prepared_run import prepare
from petra_graph.training.record.run_record import known
from tests.support.runs import SPEC


@pytest.mark.parametrize(
    ("cores", "threads", "said"),
    [
        (2, 1, ["4 processes on this machine need 4 cores for the speed of the plan, but it has 2"]),
        (4, 2, ["4 processes on this machine need 8 cores for the speed of the plan, but it has 4"]),
        (4, 1, []),
    ],
)
def test_processes_that_share_cores_are_slower_than_the_plan(write, monkeypatch, cores, threads, said):
    prepared = prepare(write("small.toml", SPEC), [f"run.threads={threads}"], processes=4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert list(known(prepared, 4)) == said
    assert list(known(prepared, 1)) == []
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert bool(list(known(prepared, 4))) == (2 * threads > cores)


OTHERS = "the device type is for plans, and the run's speed and memory are others"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([], []),
        (["partition.device_type=cpu"], []),
        (
            ["partition.device_type=h100"],
            [f'partition.device_type is "h100", but the run computes on cpu: {OTHERS}'],
        ),
        (
            ["partition.devices=2"],
            [
                "partition.devices is 2, but only cpu is here: it runs all stages; --processes 2 starts a process for each"
            ],
        ),
    ],
)
def test_devices_that_are_not_here(write, settings, said):
    """A spec that is planned for a cluster is tried on a laptop, and its run says that it is no run of that plan."""
    assert list(known(prepare(write("small.toml", SPEC), settings), 1)) == said
