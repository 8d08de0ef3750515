"""Predictions of saved runs: classes, of networks that give a class or values for each pixel too, and texts."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import petra_graph as pg
from petra_graph.cli.main import main
from petra_graph.inference.predict import draw_tokens
from petra_graph.inference.saved_run import open_data


@pytest.fixture
def files(opened, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    samples, _ = open_data(opened).test.fetch(range(5), seed=0, epoch=0)
    np.save("two.npy", samples[:2].numpy())
    np.save("one.npy", samples[2].numpy())
    return samples[:3]


def test_probabilities_of_the_best_classes(trained, opened, files, capsys):
    assert main(["predict", str(trained), "two.npy", "one.npy", "--json", "--top", "4"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["file"], one["index"]) for one in found] == [("two.npy", 0), ("two.npy", 1), ("one.npy", 0)]
    with torch.no_grad():
        values, classes = opened.load()[0](files).softmax(1).topk(4)
    assert [[one["class"] for one in row["classes"]] for row in found] == classes.tolist()
    assert [[one["score"] for one in row["classes"]] for row in found] == values.tolist()


def test_outputs_that_are_no_logits_are_no_probabilities(trained, files, capsys):
    assert main(["predict", str(trained), "one.npy", "--json", "--set", "loss.name=mean-squared-error"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert sum(one["score"] for one in found["classes"]) != pytest.approx(1)


MODULE = """
import torch
from attrs import frozen
from torch import nn
from petra_graph.blocks import Head
from petra_graph.plugins import DataFacts


class Squares:
    def __init__(self, first, classes):
        self.first, self.classes = first, classes

    def __len__(self):
        return 16

    def fetch(self, indices, *, seed, epoch):
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(256, (64, 1, 6, 8), generator=generator, dtype=torch.uint8)
        images = images[torch.as_tensor(indices) + self.first]
        bright = images[:, 0] > 127
        return images, bright.long() if self.classes else (images / 255).expand(-1, 3, -1, -1).float()


class Bright:
    facts = DataFacts(shape=(1, 6, 8), classes=2, target_shape=(6, 8), class_names=("dark", "bright"))

    def __init__(self):
        self.train, self.test = Squares(0, True), Squares(16, True)


class Colours:
    facts = DataFacts(shape=(1, 6, 8), target_shape=(3, 6, 8), target_dtype="float32")

    def __init__(self):
        self.train, self.test = Squares(0, False), Squares(16, False)


class Pixels(Head):
    def __init__(self, inputs, *, outputs: int):
        super().__init__(inputs)
        self.conv = nn.Conv2d(1, outputs, 1)

    def forward(self, x):
        return self.conv(x)
"""
SPEC = """
optimizer = {{ options = {{ lr = 0.3 }} }}
loss = {{ name = "{loss}" }}
data = {{ name = "squares:{data}", batch = 4 }}
run = {{ epochs = {epochs} }}
[[graph.node]]
name = "pixels"
block = "squares:Pixels"
kind = "head"
options = {{ outputs = {outputs} }}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The directories of a network of classes and of one of values."""
    folder = tmp_path_factory.mktemp("dense")
    (folder / "squares.py").write_text(MODULE)
    found = []
    for data, loss, outputs, epochs in (("Bright", "cross-entropy", 2, 20), ("Colours", "mean-squared-error", 3, 10)):
        (folder / "net.toml").write_text(SPEC.format(data=data, loss=loss, outputs=outputs, epochs=epochs))
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            assert main(["run", "net.toml"]) == 0
        found.append(str(max((folder / "runs").iterdir(), key=lambda run: run.stat().st_mtime_ns)))
    return found


def test_a_map_is_summed_up_and_values_are_told(runs, here, capsys):
    half = np.zeros((1, 6, 8), np.uint8)
    half[..., 4:] = 255
    np.save("two.npy", np.stack([half, 255 - half]))
    assert main(["predict", runs[0], "two.npy", "--top", "1"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["two.npy", "dark", "50.00", "%"],
        ["two.npy", "[1]", "dark", "50.00", "%"],
    ]
    assert main(["predict", runs[1], "two.npy", "--json"]) == 0
    expected = pg.load(runs[1])(torch.from_numpy(half)[None])[0].detach()
    assert json.loads(capsys.readouterr().out)[0]["output"] == pytest.approx(expected.flatten().tolist(), abs=1e-6)


# --- texts continued by networks of next tokens ---


def network(tokens):
    """The logits 0, 1, 2 for every token."""
    assert tokens.shape[1] <= 4
    return torch.arange(3.0)[None, :, None].expand(1, 3, tokens.shape[1])


def drawn(tokens, **options):
    return draw_tokens(network, [0, 1], tokens, context=4, **options)


def test_the_likeliest_token_always_the_likeliest_two_and_each_by_its_share():
    assert drawn(tokens=5, temperature=0.0) == [0, 1, 2, 2, 2, 2, 2]
    before = torch.get_rng_state()
    assert set(drawn(tokens=200, top_k=2)[2:]) == {1, 2}
    found = drawn(tokens=2000, temperature=1.0)
    shares = torch.tensor(found[2:]).bincount(minlength=3) / 2000
    torch.testing.assert_close(shares, torch.arange(3.0).softmax(0), rtol=0, atol=0.04)
    assert torch.equal(torch.get_rng_state(), before)
    assert drawn(tokens=2000, temperature=1.0) == found
    assert drawn(tokens=2000, temperature=1.0, seed=1) != found


def test_a_run_continues_a_text(letters, capsys):
    def said(*options):
        capsys.readouterr()
        assert main(["predict", "latest", "--prompt", "fg", *options]) == 0
        return capsys.readouterr().out

    assert said("--temperature", "0", "--tokens", "9") == "fghabcdefgh\n"
    hot = ("--temperature", "9", "--tokens", "60")
    assert said(*hot) == said(*hot) != said(*hot, "--seed", "1")
    assert json.loads(said("--tokens", "3", "--json"))["text"].startswith("fg")
    assert pg.open_run("latest").sample(prompt="fg", temperature=9, tokens=60) + "\n" == said(*hot)


def test_a_text_that_has_no_tokens(letters, capsys):
    capsys.readouterr()
    assert main(["predict", "latest", "--prompt", "FG"]) == 2
    assert "'FG' has other letters than a to h\n    help: write small letters" in capsys.readouterr().err
