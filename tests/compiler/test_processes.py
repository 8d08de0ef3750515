"""How many processes can share the stages, and on what kind of device."""

from __future__ import annotations

import pytest

from petra_graph.compiler.spec_checks import check_processes
from petra_graph.errors import SpecError
from petra_graph.planning.spec_devices import process_devices
from petra_graph.spec.run_tables import PartitionSpec


def test_a_process_without_a_stage_is_refused():
    check_processes(2, 2)
    with pytest.raises(SpecError, match="3 processes cannot share 2 stages"):
        check_processes(2, 3)


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
