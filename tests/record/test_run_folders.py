"""Which directories are runs, and which of them is the latest."""

from __future__ import annotations

import pytest

from petra_graph.errors import SpecError
from petra_graph.record.recorded_run import (
    began,
    find_run,
    run_directories,
)


def test_latest(here):
    with pytest.raises(SpecError, match="there is no run in runs"):
        find_run("latest")
    for name in ("20260101T000000Z-b-1", "20260202T000000Z-a-2", "notes"):
        (here / "runs" / name).mkdir(parents=True)
    assert find_run("latest").name == "20260202T000000Z-a-2"
    assert f"{began(find_run('latest')):%Y-%m-%d}" == "2026-02-02"


def test_which_run_goes_on(here):
    """The youngest one that has a checkpoint, whatever specifications it and the others are named after."""
    for name, checkpoints in (("20260101T000000Z-z-1", 1), ("20260202T000000Z-a-2", 1), ("20260303T000000Z-c-3", 0)):
        (here / "runs" / name).mkdir(parents=True)
        for at in range(checkpoints):
            (here / "runs" / name / "checkpoints" / f"{at:012d}").mkdir(parents=True)
    assert find_run("latest", here / "runs", resumes=True).name == "20260202T000000Z-a-2"
    renamed = (here / "runs" / "20260101T000000Z-z-1").rename(here / "runs" / "best")
    (renamed / "resolved.toml").touch()  # now
    assert find_run("latest", here / "runs", resumes=True) == renamed
    with pytest.raises(SpecError, match="has no checkpoint"):
        find_run("runs/20260303T000000Z-c-3", resumes=True)
    with pytest.raises(SpecError, match="there is no run directory"):
        find_run("runs/none", resumes=True)
    with pytest.raises(SpecError, match=r"no run in .* has a checkpoint"):
        find_run("latest", here, resumes=True)


def test_a_run_of_another_name_is_known_by_its_files(saved_run, here):
    renamed = saved_run.rename(here / "best")
    (here / "notes").mkdir()
    assert run_directories(here) == [renamed]
    assert run_directories(renamed) == [renamed]
    assert abs(began(renamed).timestamp() - (renamed / "resolved.toml").stat().st_mtime) < 60
