"""Which GPUs the runs of a sweep see that train at the same time."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch
from petra_graph_studies.sweeping import member_processes
from petra_graph_studies.sweeping.member_processes import MemberProcesses, visible_gpus

VISIBLE = "CUDA_VISIBLE_DEVICES"


@pytest.fixture
def gpus(monkeypatch):
    def have(many, named=None):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: many)
        monkeypatch.delenv(VISIBLE, raising=False)
        if named is not None:
            monkeypatch.setenv(VISIBLE, named)

    return have


@pytest.mark.parametrize(
    ("many", "at_once", "seen"),
    [
        (4, 2, ["0,1,2,3", "2,3,0,1"]),
        (4, 4, ["0,1,2,3", "1,2,3,0", "2,3,0,1", "3,0,1,2"]),
        (2, 3, ["0,1", "1,0", "0,1"]),
        (3, 2, ["0,1,2", "1,2,0"]),
        (1, 2, [None, None]),
        (0, 2, [None, None]),
        (4, 1, [None]),
    ],
)
def test_every_run_begins_at_another_gpu(gpus, many, at_once, seen):
    gpus(many)
    assert [visible_gpus(place, at_once).get(VISIBLE) for place in range(at_once)] == seen


def test_gpus_that_the_caller_has_chosen(gpus):
    gpus(2, "5,GPU-1f")
    assert visible_gpus(1, 2) == {VISIBLE: "GPU-1f,5"}


def test_a_run_takes_the_place_of_one_that_has_ended(gpus, monkeypatch, tmp_path):
    gpus(2)
    seen, codes = {}, {}

    def start(words, variables, output, folder):
        seen[words[-1]] = variables[VISIBLE]
        return SimpleNamespace(poll=lambda: codes.get(words[-1]))

    monkeypatch.setattr(member_processes, "start_process", start)
    monkeypatch.setattr(member_processes, "_LOOK_SECONDS", 0)
    members = [
        SimpleNamespace(folder=tmp_path / name, directory=None, output=tmp_path / os.devnull, name=name)
        for name in ("first", "second", "third")
    ]
    sweep = SimpleNamespace(at_once=2, working_directory=".", words=lambda member: [member.name])
    looks = iter([{"second": 0}, {"first": 0, "third": 0}])
    MemberProcesses(sweep, members).carry_out(lambda: codes.update(next(looks, {})), lambda *_: None)
    assert seen == {"first": "0,1", "second": "1,0", "third": "1,0"}
