"""Targets of any shape are planned as they are trained: a class for each token, for each pixel, or values."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import petra_graph as pg
from petra_graph.cli.main import main
from tests.support.runs import overrides

SPEC = """
name = "tokens"
[architecture]
name = "module"
options = { build = "tests.networks.networks_by_parts:Gpt" }
[partition]
untie = true
[method]
schedule = "1f1b"
[data]
name = "random"
batch = 4
options = { shape = [6], dtype = "int64", levels = 11, classes = 11, target_shape = [6], train = 32, test = 8 }
"""


@pytest.fixture
def spec(write):
    return write("tokens.toml", SPEC)


def test_a_language_model_is_planned(spec, capsys):
    """`plan` said that the head cannot be trained, though `run` trained it."""
    assert main(["plan", spec, "--json", *overrides("partition.stages=3")]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["timing"]["samples_per_second"] > 0
    assert not any("needs values" in one for one in plan["assumptions"])


def test_a_class_is_predicted_for_each_token(spec, capsys):
    assert main(["run", spec, "--set", "run.epochs=1"]) == 0
    tokens = np.arange(18).reshape(3, 6) % 11
    np.save("texts.npy", tokens)
    capsys.readouterr()
    assert main(["predict", "latest", "texts.npy", "--top", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["index"], one["position"]) for one in found] == [(n, [t]) for n in range(3) for t in range(6)]
    with torch.no_grad():
        expected = pg.load("latest")(torch.as_tensor(tokens)).softmax(1).topk(2, dim=1)
    for key, values in zip(("score", "class"), expected, strict=True):
        listed = [[one[key] for one in row["classes"]] for row in found]
        assert listed == values.transpose(1, 2).flatten(0, 1).tolist()
    assert main(["predict", "latest", "texts.npy", "--top", "1"]) == 0
    assert "texts.npy [2] (5)  " in capsys.readouterr().out
