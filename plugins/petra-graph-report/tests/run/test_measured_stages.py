"""What a run measured of its stages and processes, and what was planned of them, as tables of a page."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from petra_graph_report.run.measured_stages import StageSeconds, process_columns, stage_tables

from petra_graph.units import memory
from tests.support.plan_documents import three_stages
from tests.support.process_figures import MEASURED, MIB, process


def summary(*processes):
    return {"measured": {"from_micro_batch": 0, "processes": list(processes)}}


@pytest.fixture
def run():
    """A run of three stages with what its processes have measured."""

    def run(*processes):
        stages = [stage["nodes"] for stage in three_stages()["stages"]]
        resolved = {"partition": {"stages": stages}, "data": {"batch": 64}}
        return SimpleNamespace(resolved=resolved, summary=summary(*processes) if processes else {})

    return run


def test_a_stage():
    found = StageSeconds.of(1, [process(0, (1, MEASURED))])
    assert (found.each("forward"), found.each("backward"), found.each("update")) == (0.25, 0.75, 0.5)
    assert found.busy == 0.5
    assert found.rate(10) == 10 * 4 / 5.0


def test_replicas_of_a_stage_count_together():
    found = StageSeconds.of(1, [process(0, (1, MEASURED)), process(1, (1, MEASURED))])
    assert found.each("forward") == 0.25
    assert (found.busy, found.rate(10)) == (0.5, 8.0)


def test_a_stage_whose_device_is_not_timed():
    found = StageSeconds.of(1, [process(0, (1, {}))])
    assert (found.each("forward"), found.busy, found.rate(10)) == (None, None, None)


def test_planned_stands_beside_measured(run):
    measured = run(process(0, *((stage, MEASURED) for stage in (1, 2, 3))))
    tables = dict(stage_tables(three_stages(), measured))
    assert list(tables) == ["as planned", "planned and measured"]
    heads = [column.head.split("\n")[:2] for column in tables["planned and measured"]]
    assert heads[:4] == [["stage"], ["forward", "planned"], ["forward", "measured"], ["backward", "planned"]]
    units = {column.head.split("\n")[-1] for column in tables["planned and measured"][1:6]}
    assert units == {"ms"}, "numbers that are compared have one unit"
    ((title, columns),) = stage_tables(None, measured)
    assert title == "measured"
    assert [column.head.split("\n")[0] for column in columns[:4]] == ["stage", "nodes", "forward", "backward"]


def test_without_measurements_the_plan_is_all(run):
    assert [title for title, _ in stage_tables(three_stages(), run())] == ["as planned"]
    assert not list(stage_tables(None, run()))
    assert process_columns(three_stages(), {}) is None


def test_a_process_s_growth_stands_beside_the_bytes_of_its_stages():
    plan = three_stages()
    sizes = [stage["bytes"]["total"] for stage in plan["stages"]]
    one, other = process(0, (1, {}), (2, {}), grown=5 * MIB), process(1, (3, {}))
    columns = {column.head.split("\n")[0]: list(column.cells) for column in process_columns(plan, summary(one, other))}
    assert columns["planned"] == [memory(sizes[0] + sizes[1]), memory(sizes[2])]
    assert columns["growth since before"] == ["5 MiB", "0 B"]
    assert columns["peak of the"] == ["805 MiB", "800 MiB"]


def test_cuda_devices_have_a_column_of_their_own():
    on_device = process(0, (1, {})) | {"cuda_peak_bytes": {"cuda:0": 3 * MIB}}
    heads = [column.head for column in process_columns(None, summary(on_device))]
    assert "CUDA peak\nmeasured" in heads
    assert not any("CUDA" in column.head for column in process_columns(None, summary(process(0))))
