"""A parameter that its block freezes is neither in the optimizer nor in the plan's gradients and states, and keeps its value."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from safetensors.torch import load_file

from petra_graph.cli.main import main
from petra_graph.training.prepare import prepare
from tests.support.runs import SPEC, only_run

CODE = """
from torch import nn
from petra_graph.blocks import AdditiveCoupling


class Half(AdditiveCoupling):
    def __init__(self, inputs):
        super().__init__(inputs)
        width = inputs[0][0]
        self.own = nn.Linear(width, width)
        self.frozen = nn.Linear(width, width).requires_grad_({trained})
        nn.init.eye_(self.frozen.weight)

    def residual(self, x):
        return self.own(self.frozen(x)).tanh()
"""
WIDTH = 12
OF_A_LAYER = WIDTH * WIDTH + WIDTH


@pytest.fixture
def spec(write):
    def written(trained):
        write("half_frozen.py", CODE.format(trained=trained))
        sys.modules.pop("half_frozen", None)
        text = SPEC.replace('block = "rev-mlp"', 'block = "half_frozen:Half"').replace("repeat = 2\n", "")
        text = text.replace("options = { hidden = 12, dropout = 0.1 }\n", "")
        return write("half.toml", text.replace("lr = 0.05 }", "lr = 0.05, momentum = 0.9 }"))

    yield written
    sys.modules.pop("half_frozen", None)


@pytest.mark.parametrize("trained", [False, True])
def test_the_plan_and_the_stage_have_no_more_than_is_trained(spec, capsys, trained):
    layers = 2 if trained else 1
    assert main(["plan", spec(trained), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["stages"][1]["bytes"]
    assert found["parameters"] == 2 * 4 * OF_A_LAYER
    assert found["gradients"] == found["optimizer"] == layers * 4 * OF_A_LAYER
    optimizer = prepare("half.toml", []).executors()[1].updater.optimizer
    stepped = [one for group in optimizer.param_groups for one in group["params"]]
    assert sum(one.numel() for one in stepped) == layers * OF_A_LAYER


def test_it_keeps_its_value(spec):
    assert main(["run", spec(trained=False)]) == 0
    weights = load_file(only_run() / "weights.safetensors")
    assert torch.equal(weights["rev/frozen.weight"], torch.eye(WIDTH))
    assert not torch.equal(weights["rev/own.weight"], torch.eye(WIDTH))
