"""Runs of the package's networks: trained, planned, sampled while they train and afterwards, in one process and in two."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from petra_graph.cli.main import main
from tests.support.forks import alone, ended, start_server

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
    assert main(["run", "verse.toml", "--set", "checkpoint.every=25 updates", "--json"]) == 0
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

    # Resume from a checkpoint before the last samples: the file must not have them twice.
    whole = (latest() / "samples.txt").read_text()
    begun, *later = sorted((latest() / "checkpoints").iterdir(), key=lambda folder: int(folder.name))
    assert 40 < int(begun.name) < 80, "between the two evaluations"
    for folder in later:
        shutil.rmtree(folder)
    assert main(["run", "--resume", "latest"]) == 0
    assert (latest() / "samples.txt").read_text() == whole


def test_two_processes_write_the_same_samples() -> None:
    """The callback has the weights of both processes' stages."""
    start_server()
    words, found = ("run", "verse.toml", "--set", "run.epochs=1"), []
    for more in ((), ("--processes", "2")):
        with alone(*words, *more) as run:
            assert ended([run]) == [0], run.said
        summary = json.loads((latest() / "summary.json").read_text())
        found.append((summary["test"], (latest() / "samples.txt").read_text()))
    assert found[0] == found[1]


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


def test_the_specs_are_valid() -> None:
    assert main(["validate", *map(str, (HERE / "specs").glob("*.toml"))]) == 0
