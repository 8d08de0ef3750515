"""Predictions of saved runs."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from petra_graph_export.export_network import first_samples

from petra_graph.cli.main import main


@pytest.fixture
def files(opened, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    samples = first_samples(opened, 5)
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


def test_a_table(trained, files, capsys):
    assert main(["predict", str(trained), "two.npy", "--top", "1", "--batch", "1"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("two.npy  ")
    assert second.startswith("two.npy [1]  ")
    assert first.endswith(" %")


def test_a_file(trained, files, tmp_path, capsys):
    assert main(["predict", str(trained), "one.npy", "--output", "out/found.json"]) == 0
    assert capsys.readouterr().out == "out/found.json\n"
    assert len(json.loads((tmp_path / "out/found.json").read_text())) == 1


def test_a_loss_of_a_package_says_that_it_reads_logits(trained, files, write, capsys):
    write("mine.py", """
        from petra_graph.catalog.losses import CrossEntropy
        from petra_graph.plugins import LossDeclaration, declares

        @declares(LossDeclaration, "mine:Made", logits=True)
        class Mine:
            "Cross-entropy."
            label_smoothing = 0.0

        Made = CrossEntropy
        """)  # fmt: skip
    assert main(["predict", str(trained), "one.npy", "--json", "--top", "10", "--set", "loss.name=mine:Mine"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert sum(one["score"] for one in found["classes"]) == pytest.approx(1)


def test_outputs_that_are_no_logits_are_no_probabilities(trained, files, capsys):
    assert main(["predict", str(trained), "one.npy", "--json", "--set", "loss.name=mean-squared-error"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert sum(one["score"] for one in found["classes"]) != pytest.approx(1)
