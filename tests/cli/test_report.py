"""`petra-graph report`: pictures of a run, or the reason why there are none."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from petra_graph.cli.main import main
from tests.support.runs import SPEC, only_run


@pytest.fixture
def probed(write, capsys):
    """A run of two epochs with a probe."""
    assert main(["run", write("small.toml", SPEC), "--set", "probe.per_epoch=2"]) == 0
    capsys.readouterr()
    return only_run()


def test_pictures_go_into_the_run_directory(probed, capsys):
    assert main(["report", str(probed), "--figure", "fidelity"]) == 0
    pictures = [probed / "fidelity-training.png", probed / "fidelity-stages.png"]
    assert capsys.readouterr().out.splitlines() == [str(path) for path in pictures]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)


def test_or_elsewhere_with_the_numbers(probed, here, capsys):
    assert main(["report", str(probed), "--figure", "fidelity", "--output", "figures/v1.5", "--json"]) == 0
    assert {path.name for path in (here / "figures").iterdir()} == {"v1.5-training.png", "v1.5-stages.png"}
    assert not (probed / "fidelity-training.png").exists()
    facts = json.loads(capsys.readouterr().out)
    assert (facts["method"], facts["settings"]) == ("petra", "1f1b, accumulation 3")
    assert facts["figures"] == {"training": "figures/v1.5-training.png", "stages": "figures/v1.5-stages.png"}
    assert (facts["epochs"], facts["stages"]) == (2, [1, 2, 3, 4])
    assert len(facts["means by epoch"]["cosine_to_end_to_end"]["1"]) == 2
    assert set(facts["means by epoch"]["reconstruction_error"]) == {"2", "3"}


def test_a_run_without_a_probe(write, capsys):
    assert main(["run", write("small.toml", SPEC), "--set", "run.epochs=1"]) == 0
    capsys.readouterr()
    assert main(["report", str(only_run()), "--figure", "fidelity"]) == 2
    assert capsys.readouterr() == (
        "",
        (
            f"{only_run()} holds no measurement of a probe\n"
            "    help: train with a probe: petra-graph run SPEC --set probe.per_epoch=15\n"
        ),
    )


def test_no_run(here, capsys):
    assert main(["report", "runs", "--figure", "fidelity"]) == 2
    assert capsys.readouterr() == (
        "",
        (
            "runs is no run's directory: it has no resolved.toml and metrics.jsonl\n"
            "    help: name one that `petra-graph run` has made, as in runs/20260131T120000Z-NAME-3f9a1c\n"
        ),
    )


def test_no_figure(here, capsys):
    assert main(["report", "runs"]) == 2
    assert "Missing option '--figure'" in capsys.readouterr().err


@pytest.mark.processes
def test_a_report_needs_no_torch(probed):
    code = "import sys; from petra_graph.cli.main import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    command = [sys.executable, "-c", code, "report", str(probed), "--figure", "fidelity"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1] == "False"
