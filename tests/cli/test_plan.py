"""`petra-graph plan` and `profile`, as they are typed."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from petra_graph.cli import main as front
from tests.support import ROOT
from tests.support.runs import SPEC


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


@pytest.fixture
def call(capsys):
    """Run the command line; return its exit code, what it printed, and its errors."""

    def run(*arguments):
        code = front.main(list(arguments))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


QUICKSTART = str(ROOT / "specs" / "quickstart.toml")


def printed(call, *arguments):
    code, out, err = call(*arguments)
    assert code == 0, err
    assert not err
    return out


def test_a_file_instead_of_the_screen(call, spec, here):
    assert printed(call, "plan", spec, "--json", "--output", "new/plan.json") == "new/plan.json\n"
    assert (here / "new/plan.json").read_text().startswith("{")
    code, _, err = call("plan", spec, "--output", "small.toml/plan.txt")
    assert code == 1
    assert "small.toml/plan.txt" in err


def test_a_saved_plan_is_shown_again(call, spec, here):
    printed(call, "plan", spec, "--json", "--output", "saved.json")
    assert printed(call, "plan", "saved.json", "-j") == (here / "saved.json").read_text()
    for form in ("text", "trace"):
        assert printed(call, "plan", "saved.json", "--format", form) == printed(call, "plan", spec, "--format", form)
    assert printed(call, "plan", spec, "--format", "html") == "small.plan.html\n"
    assert printed(call, "plan", "saved.json", "--format", "html") == "saved.plan.html\n"
    assert (here / "saved.plan.html").read_text() == (here / "small.plan.html").read_text()
    code, _, err = call("plan", "saved.json", "--set", "run.seed=1")
    assert code == 2
    assert "A saved plan is shown as it is" in err


def test_an_architecture_is_written_out(call, here):
    out = printed(call, "plan", QUICKSTART, "--expand")
    nodes = tomllib.loads(out)["graph"]["node"]
    assert [node["name"] for node in nodes][:2] == ["stem", "layer1.0"]
    (here / "expanded.toml").write_text(out)
    plans = [json.loads(printed(call, "plan", path, "--json")) for path in (QUICKSTART, "expanded.toml")]
    assert plans[0] == plans[1]


def test_no_feasible_plan_ends_with_3(call, spec):
    code, out, err = call("plan", spec, "--set", "partition.memory=1kB")
    assert (code, out) == (3, "")
    assert 'device "cpu" would hold' in err
    assert "help: none of 8 changes that were planned fits" in err
    assert "Traceback" not in err


def test_methods_compared(call, spec):
    """In one table of at most 80 columns; exit code 3: none of them fits."""
    lines = printed(call, "plan", spec, "--compare", "--set", "partition.devices=4").splitlines()
    assert lines[0] == "small: plans compared"
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.startswith("plan  ")] == [line for line in lines if "speed-up  " in line]
    assert any("2 replicas of 2 devices" in line for line in lines)
    printed(call, "plan", spec, "--compare", "--format", "html")
    assert Path("small.plan.html").read_text().startswith("<!doctype html>")
    assert json.loads(printed(call, "plan", spec, "--compare", "--json"))["recommended"] is not None
    code, out, _ = call("plan", spec, "--compare", "--set", "partition.memory=1kB")
    assert (code, "0 of " in out) == (3, True)


def test_what_an_epoch_takes_and_what_a_device_has(call, spec):
    sets = ("partition.devices=2", "partition.device_type='a100-40gb'", "run.epochs=3")
    words = ["plan", spec, *(word for one in sets for word in ("--set", one))]
    document = json.loads(printed(call, *words, "--json"))
    run, timing = document["run"], document["timing"]
    assert document["samples_per_update"] == 3 * 128
    assert run["micro_batches_per_epoch"] == 1438 // 128 == 11
    assert run["epoch_seconds"] == pytest.approx(11 * timing["tick_seconds"] + timing["overhead_seconds"])
    assert run["seconds"] == pytest.approx(3 * run["epoch_seconds"])
    assert [device["capacity_bytes"] for device in document["devices"]] == [40 * 10**9] * 2
