"""`petra-graph doctor`: what it prints, and its exit codes."""

from __future__ import annotations

import json

import pytest
from petra_graph_authoring.doctor import device_findings, environment_findings, plugin_findings
from petra_graph_authoring.doctor.doctor_verb import exit_code
from petra_graph_authoring.doctor.environment_findings import Finding

from petra_graph.cli.main import main

FINE = Finding(area="environment", name="python", status="ok", found="3.13")
ABSENT = Finding(area="devices", name="cuda", status="absent", found="no GPU")
WARNING = Finding(area="plugins", name="blocks/x", status="warning", found="is in a and b", remedy="write a:x")
PLUGIN = Finding(area="plugins", name="blocks/y", status="broken", found="is broken", remedy="remove it")
TORCH = Finding(area="devices", name="torch", status="broken", found="cannot be imported")


@pytest.fixture
def found(monkeypatch):
    def give(*findings):
        for module, area in (
            (environment_findings, "environment"),
            (device_findings, "devices"),
            (plugin_findings, "plugins"),
        ):
            own = [one for one in findings if one.area == area]
            monkeypatch.setattr(module, f"examine_{area}", lambda *_, own=own, **__: own)

    return give


def test_nothing_is_wrong(found, capsys):
    found(FINE, ABSENT)
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out == (
        """\
environment
  python  ok  3.13

devices
  cuda  absent  no GPU

nothing is wrong
"""
    )


def test_faults_are_repeated_with_their_remedies(found, capsys):
    found(FINE, WARNING, PLUGIN)
    assert main(["doctor"]) == 4
    assert capsys.readouterr().out == (
        """\
environment
  python  ok  3.13

plugins
  blocks/x  warning  is in a and b
  blocks/y  broken   is broken

warning: blocks/x: is in a and b
    help: write a:x
broken: blocks/y: is broken
    help: remove it
1 broken, 1 warning
"""
    )


def test_as_json(found, capsys):
    found(FINE, WARNING)
    assert main(["doctor", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["exit_code"] == 0
    assert shown["findings"][1] == {
        "area": "plugins",
        "name": "blocks/x",
        "status": "warning",
        "found": "is in a and b",
        "remedy": "write a:x",
    }


@pytest.mark.parametrize(
    ("findings", "code"),
    [([FINE, ABSENT, WARNING], 0), ([PLUGIN], 4), ([TORCH], 1), ([PLUGIN, TORCH], 1)],
)
def test_exit_codes(findings, code):
    assert exit_code(findings) == code


@pytest.mark.processes
@pytest.mark.slow
def test_this_environment_can_run(capsys):
    assert main(["doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert list(dict.fromkeys(one["area"] for one in findings)) == ["environment", "devices", "plugins"]
    devices = {one["name"]: one["status"] for one in findings if one["area"] == "devices"}
    assert (devices["torch"], devices["processes"]) == ("ok", "ok")
