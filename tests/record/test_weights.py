"""Weights are keyed by node, so that they load under any partition."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from petra_graph.record.weights import save_weights, weights_of
from petra_graph.training.evaluation import Meters
from tests.support.pipelines import REVNET, Batched, batches, pipeline

IMAGE = (3, 6, 6)
CUTS = (("stem", "a0"), ("a1", "down", "b0"), ("head",))
EVALUATION = 1e-12


def modules(built):
    return [pair for executor in built.executors for pair in executor.modules.items()]


def loss(built, data) -> float:
    totals = Meters()
    for result in built.runtime.evaluate(Batched(data)):
        totals.add(result)
    return totals.means()["loss"]


def test_weights_load_under_another_partition(tmp_path):
    data = batches(IMAGE, 6)
    trained = pipeline(REVNET, IMAGE, schedule="1f1b")
    trained.train(data)
    save_weights(tmp_path / "w.safetensors", weights_of(modules(trained)))
    loaded = load_file(tmp_path / "w.safetensors")
    other = pipeline(REVNET, IMAGE, stages=CUTS, seed=1)
    assert loss(other, data) != pytest.approx(loss(trained, data), rel=1e-3)
    for name, module in modules(other):
        own = {key.partition("/")[2]: value for key, value in loaded.items() if key.partition("/")[0] == name}
        module.load_state_dict(own, strict=True)
    assert loss(other, data) == pytest.approx(loss(trained, data), rel=EVALUATION)


def test_two_layers_may_share_a_parameter(tmp_path):
    """safetensors refuses tensors that share memory, which was found out at the end of a run."""
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    save_weights(tmp_path / "w.safetensors", weights_of([("tied", tied)]))
    loaded = load_file(tmp_path / "w.safetensors")
    assert torch.equal(loaded["tied/0.weight"], loaded["tied/1.weight"])
    assert loaded.keys() == {"tied/0.weight", "tied/0.bias", "tied/1.weight", "tied/1.bias"}
