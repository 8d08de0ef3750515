"""What the doctor finds of packages, variables and the folder."""

from __future__ import annotations

from importlib import metadata

import pytest
from petra_graph_authoring.doctor import environment_findings
from petra_graph_authoring.doctor.environment_findings import examine_environment

VERSIONS = {"alpha": "2.10.0", "beta": "1.0rc1", "gamma": "0.9+cpu"}


@pytest.fixture(autouse=True)
def packages(monkeypatch, here):
    def version(name):
        if name not in VERSIONS:
            raise metadata.PackageNotFoundError(name)
        return VERSIONS[name]

    monkeypatch.setattr(environment_findings.metadata, "version", version)


def states(*requirements, **variables):
    """Name, status and the beginning of what was found, of all but petra-graph, Python, the compiler and the folder."""
    found, others = list(examine_environment(requirements, variables)), {"petra-graph", "python", "compiler", "folder"}
    return [(one.name, one.status, one.found) for one in found if one.name not in others]


def test_versions_are_compared_as_numbers():
    assert states("alpha>=2.9", "beta>=1.0", "gamma>=0.10", "delta>=1") == [
        ("alpha", "ok", "2.10.0"),
        ("beta", "ok", "1.0rc1"),
        ("gamma", "broken", "0.9+cpu; gamma>=0.10 is needed"),
        ("delta", "broken", "not installed; delta>=1 is needed"),
    ]


def test_what_is_broken_has_a_command():
    (finding,) = [one for one in examine_environment(["gamma>=0.10"], {}) if one.status == "broken"]
    assert finding.remedy == "pip install 'gamma>=0.10'"


def test_extras_may_be_absent():
    assert states(
        "alpha>=1; extra == 'one'", "delta>=1; extra == 'one'", 'beta; extra == "two"', "x; extra == 'test'"
    ) == [
        ("extra one", "absent", "lacks delta; has alpha 2.10.0"),
        ("extra two", "ok", "beta 1.0rc1"),
    ]


def test_variables_that_torchrun_left():
    assert states(RANK="0", WORLD_SIZE="2", CUDA_VISIBLE_DEVICES="") == [
        (
            "variables",
            "warning",
            "RANK, WORLD_SIZE: every run here takes itself for a process of torchrun, and waits for the others",
        ),
        ("CUDA_VISIBLE_DEVICES", "ok", "empty"),
    ]


def test_a_compiler_may_be_absent(monkeypatch):
    monkeypatch.setenv("CXX", "nowhere++")
    (finding,) = [one for one in examine_environment([], {}) if one.name == "compiler"]
    assert (finding.status, finding.found) == ("absent", "lacks a C++ compiler (nowhere++), which run.compile needs")
    assert finding.remedy.endswith("or name a compiler in CXX, if run.compile is wanted")


def test_a_folder_in_which_no_run_can_be_written(monkeypatch):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(environment_findings, "TemporaryFile", refuse)
    (finding,) = [one for one in examine_environment([], {}) if one.name == "folder"]
    assert (finding.status, finding.found) == ("warning", "runs cannot be written: Permission denied")
