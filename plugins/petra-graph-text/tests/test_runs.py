"""Runs of the package's networks: trained, planned, sampled while they train and afterwards, in one process and in two."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import petra_graph
from petra_graph.cli.main import main

HERE = Path(__file__).parent.parent
VERSE = "the cat sat on the mat and the dog sat on the log\n"
SPEC = """
name = "verse"

[architecture]
name = "gpt"
options = { layers = 2, heads = 2, width = 16, positions = "rotary" }

[loss]
name = "token-cross-entropy"

[method]
schedule = "1f1b"

[optimizer]
name = "adamw"
options = { lr = 0.02 }

[data]
name = "text-characters"
batch = 8
options = { root = "verse.txt", vocabulary = 14, context = 12, samples = 320 }

[run]
epochs = 2

[[callback]]
name = "text-samples"
options = { prompt = "the ", tokens = 30, temperature = 0.0 }
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("verse.txt").write_text(VERSE * 40)
    Path("verse.toml").write_text(SPEC)
    return tmp_path


def latest() -> Path:
    return max(Path("runs").iterdir())


def test_a_language_model_learns_a_verse_and_writes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "verse.toml", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["stages"] == 4
    test = summary["test"]
    assert test["bits"] == pytest.approx(test["loss"] / torch.tensor(2.0).log().item())
    assert test["loss"] < 1.4, "of 14 characters, guessed at random: 2.64"
    assert test["top1"] > 0.5
    _, first, second = (latest() / "samples.txt").read_text().split("--- epoch ")
    assert first.startswith("1\nthe ")
    assert second.startswith("2\nthe ")
    assert len(second) == len("2\n" + "the " + "\n\n") + 30

    assert main(["predict", "latest", "--prompt", "the ", "--tokens", "30", "--temperature", "0"]) == 0
    assert capsys.readouterr().out == second.removeprefix("2\n").removesuffix("\n"), (
        "the weights are those of the last evaluation"
    )
    assert main(["predict", "latest", "--prompt", "The"]) == 2
    assert "does not know the characters 'T'" in capsys.readouterr().err


def test_two_processes_write_the_same_samples(capfd: pytest.CaptureFixture[str]) -> None:
    """The callback has the weights of both processes' stages."""
    found = []
    for processes in ("1", "2"):
        assert main(["run", "verse.toml", "--processes", processes, "--json", "--set", "run.epochs=1"]) == 0
        summary = json.loads(capfd.readouterr().out)
        found.append((summary["test"], (latest() / "samples.txt").read_text()))
    assert found[0] == found[1]


def test_a_run_that_goes_on_writes_each_sample_once() -> None:
    """It goes on from an earlier checkpoint, behind which samples were written."""
    assert main(["run", "verse.toml", "--set", "checkpoint.every=25 updates"]) == 0
    whole = (latest() / "samples.txt").read_text()
    assert [line for line in whole.splitlines() if line.startswith("---")] == ["--- epoch 1", "--- epoch 2"]
    first, *later = sorted((latest() / "checkpoints").iterdir(), key=lambda folder: int(folder.name))
    assert 40 < int(first.name) < 80, "between the two evaluations"
    for folder in later:
        shutil.rmtree(folder)
    assert main(["run", "--resume", "latest"]) == 0
    assert (latest() / "samples.txt").read_text() == whole


def test_characters_are_counted_where_the_spec_does_not_say_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    """`validate`, `plan` and `run` asked for a number that a person had to find out."""
    Path("verse.toml").write_text(SPEC.replace("vocabulary = 14, ", ""))
    assert main(["validate", "verse.toml"]) == 0
    assert main(["plan", "verse.toml", "--json"]) == 0
    assert main(["run", "verse.toml", "--fast-dev-run"]) == 0
    resolved = tomllib.loads((latest() / "resolved.toml").read_text())
    assert resolved["data"]["options"]["vocabulary"] == 14
    assert resolved["graph"]["node"][0]["options"]["vocabulary"] == 14
    Path("verse.txt").unlink()
    capsys.readouterr()
    assert main(["predict", "latest", "--prompt", "the ", "--tokens", "3"]) == 0, "a trained network needs no data"
    assert capsys.readouterr().out.startswith("the ")
    assert main(["validate", "verse.toml"]) == 2
    said = capsys.readouterr().err
    assert "the size of the vocabulary is unknown" not in said, "which follows from the missing file"
    assert "there is no file or folder" in said
    Path("verse.toml").write_text(SPEC)
    assert main(["plan", "verse.toml"]) == 0, "a given number needs no files"


def test_a_vision_transformer_is_trained(capsys: pytest.CaptureFixture[str]) -> None:
    Path("vit.toml").write_text(
        """
        architecture = { name = "vit", options = { layers = 2, heads = 2, width = 16, patch = 7, dropout = 0.1 } }
        data = { name = "random", batch = 4, options = { shape = [1, 28, 28], train = 16, test = 4 } }
        method = { schedule = "1f1b" }
        optimizer = { name = "adamw" }
        run = { epochs = 1 }
        """
    )
    assert main(["run", "vit.toml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stages"] == 4


@pytest.mark.parametrize("spec", sorted((HERE / "specs").glob("*.toml")), ids=lambda path: path.stem)
def test_the_specs_are_valid_and_planned(spec: Path) -> None:
    assert main(["validate", str(spec)]) == 0
    assert main(["plan", str(spec), "--json"]) == 0


def test_without_delay_petra_is_backpropagation() -> None:
    """Reconstruction, one evaluation of attention and of the MLP in the backward, with dropout: 1e-10 after 20 updates."""
    found = []
    for method in ("petra", "backprop"):
        changes: dict[str, Any] = {
            "method.name": method,
            "method.schedule": "sequential",
            "architecture.options.dropout": 0.1,
            "architecture.options.positions": "learned",
            "precision.compute": "float64",
            "data.options.samples": 160,
            "run.epochs": 1,
            "callback": [],
        }
        found.append(petra_graph.train("verse.toml", changes).load().state_dict())
    petra, backprop = found
    difference = sum(float((petra[name] - backprop[name]).square().sum()) for name in petra) ** 0.5
    assert difference < 1e-10 * sum(float(value.square().sum()) for value in backprop.values()) ** 0.5
