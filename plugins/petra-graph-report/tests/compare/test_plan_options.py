"""`petra-graph plan --compare` and `--scale`, as they are typed."""

from __future__ import annotations

import json

import pytest

from petra_graph.cli.main import main
from tests.support import ROOT
from tests.support.runs import SPEC


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


@pytest.fixture
def printed(capsys):
    """Plan; return what was printed."""

    def printed(*arguments, code=0):
        assert main(["plan", *arguments]) == code
        return capsys.readouterr().out

    return printed


@pytest.mark.thorough
def test_the_true_bytes_stand_beside_table_3_of_the_paper(printed):
    """The table itself is in `tests/compiler/memory/test_paper.py`."""
    spec = str(ROOT / "specs" / "revnet50_imagenet.toml")
    found = json.loads(printed(spec, "--set", "method.accumulation=1", "--compare", "--json"))["rows"]
    rows = [row for row in found if row["schedule"] == "lockstep" and not row["keep"]]
    assert [row["method"] for row in rows] == ["pipedream", "dsp", "delayed-reconstructed", "petra"]
    whole = rows[0]["paper_total"]
    assert [row["paper_saving"] for row in rows] == pytest.approx([1 - row["paper_total"] / whole for row in rows])
    true = [row["memory_total"] for row in rows]
    assert true == sorted(true, reverse=True)
    assert all(row["memory_total"] > row["paper_total"] for row in rows)


def test_a_comparison_lists_its_assumptions_where_that_is_asked_for(printed, spec):
    out = printed(spec, "--compare")
    assert "pipe-" in out, "shares of memory name their baseline"
    assert "assumptions   " in out
    assert "speed-ups are over one device" in out, "and so do speeds"
    assert "tensor by tensor" not in out
    assert "tensor by tensor" in printed(spec, "--compare", "--verbose")


def test_devices_to_scale(printed, spec):
    rows = json.loads(printed(spec, "--scale", "1,2,4", "--json"))["rows"]
    assert [row["devices"] for row in rows] == [1, 2, 4]
    assert "throughput by number of devices" in printed(spec, "--scale", "1,2")


def test_numbers_of_devices_that_are_none(spec, capsys):
    assert main(["plan", spec, "--scale", "many"]) == 2
    assert "growing numbers of devices" in capsys.readouterr().err


def test_a_comparison_in_which_nothing_fits_ends_with_3(printed, spec):
    devices = ("--set", "partition.stages=2", "--set", 'partition.devices=["cuda:0", "cuda:1"]')
    out = printed(spec, *devices, "--set", "partition.memory=1KiB", "--compare", code=3)
    assert "fits  0 of 20 methods" in out
    assert "would hold" in out
