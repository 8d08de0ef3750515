"""The study of Figures 5 and 6: small, but whole; what is finished is kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.runs import SPEC
from tools.studies.fidelity import main

ARGUMENTS = ["--epochs", "4", "--per-epoch", "2", "--schedule", "lockstep", "--schedule", "1f1b"]


@pytest.fixture
def call(write):
    write("small.toml", SPEC)

    def study(*more):
        return CliRunner().invoke(main, ["small.toml", *ARGUMENTS, "--output", "out", *more], catch_exceptions=False)

    return study


@pytest.mark.thorough
def test_a_study(call):
    done = call("--set", "run.directory=first")
    assert done.exit_code == 0
    result = json.loads(Path("out.json").read_text())
    assert list(result["runs"]) == ["lockstep", "1f1b"]
    lockstep = result["runs"]["lockstep"]
    assert lockstep["learning rate"] == pytest.approx({"1": 0.05, "2": 0.05, "3": 0.005, "4": 0.0005})
    assert len(lockstep["means by epoch"]["cosine_to_delayed"]["4"]) == 4
    assert 0 <= lockstep["PETRA closer to end-to-end than delayed, %"] <= 100
    assert not any(str(Path.cwd()) in text for text in (Path("out.json").read_text(), done.output))
    pictures = {"out-lockstep-training.png", "out-lockstep-stages.png", "out-1f1b-training.png", "out-1f1b-stages.png"}
    assert {path.name for path in Path().glob("out-*")} == pictures

    del result["runs"]["1f1b"]
    Path("out.json").write_text(json.dumps(result))
    shutil.rmtree("first")
    again = call("--set", "run.directory=second")  # where runs lie is no part of what was asked
    assert again.output.splitlines()[-2:] == done.output.splitlines()[-2:]
    assert len(list(Path("second").iterdir())) == 1, "lockstep was finished"

    other = call("--set", "run.seed=1")
    assert other.exit_code == 1
    assert "out.json holds results with overrides = [" in other.output
