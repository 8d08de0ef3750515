"""Which process hosts which stage, and on what kind of device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.compiler.placement import even_ranks, process_devices
from petra_graph.errors import SpecError
from petra_graph.spec.model import PartitionSpec


@given(st.integers(1, 40).flatmap(lambda stages: st.tuples(st.just(stages), st.integers(1, stages))))
def test_consecutive_stages_together_and_none_with_two_more_than_another(sizes):
    stages, processes = sizes
    ranks = even_ranks(stages, processes)
    shares = [ranks.count(rank) for rank in range(processes)]
    assert list(ranks) == sorted(ranks)
    assert sum(shares) == stages
    assert max(shares) - min(shares) <= 1


def test_a_process_without_a_stage_is_refused():
    with pytest.raises(SpecError, match="3 processes cannot share 2 stages"):
        even_ranks(2, 3)


@pytest.mark.parametrize(
    ("asked", "available", "expected"),
    [(1, "cpu", ("cpu", "cpu")), (2, "cuda", ("cuda:0", "cuda:1")), (("cpu",) * 5, "cuda", ("cpu", "cpu"))],
)
def test_each_process_is_a_device(asked, available, expected):
    assert process_devices(PartitionSpec(devices=asked), 2, available) == expected


@pytest.mark.parametrize("asked", [3, ("cpu", "cuda:0")])
def test_other_devices_than_processes_are_refused(asked):
    with pytest.raises(SpecError, match=r"partition\.devices is"):
        process_devices(PartitionSpec(devices=asked), 2, "cpu")
