"""A network whose layers share a parameter: its cuts, its figures, and what is said where there is no cut."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from petra_graph.cli.main import main

SPEC = """
name = "shares"

[architecture]
name = "module"
options = { build = "tests.planning.test_shared_across_stages:Shares" }

[method]
name = "backprop"

[data]
name = "random"
batch = 8
options = { shape = [12], classes = 3, train = 64, test = 8 }

[partition]
stages = 4
devices = 4
"""
NODES = ["b0", "b1", "b2", "b3", "b4"]


class Block(nn.Module):
    def __init__(self, width, outputs):
        super().__init__()
        self.linear = nn.Linear(width, outputs)

    def forward(self, x):
        return torch.tanh(self.linear(x))


class Shares(nn.Module):
    """Blocks 1 and 3 of five have one weight."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([*(Block(12, 12) for _ in range(4)), Block(12, 3)])
        self.blocks[3].linear.weight = self.blocks[1].linear.weight

    def nodes(self):
        return dict(zip(NODES, self.blocks, strict=True))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture
def planned(here, write, capsys):
    """Plan with changes, and return the document, or the message of a refusal."""
    spec = write("shares.toml", SPEC)

    def plan(*changes):
        changed = [part for one in changes for part in ("--set", one)]
        if main(["plan", spec, "--json", "--output", "plan.json", *changed]):
            return " ".join(capsys.readouterr().err.split())
        return json.loads((here / "plan.json").read_text())

    return plan


def stages_of(document):
    return [stage["nodes"] for stage in document["stages"]]


def test_a_number_of_stages_is_cut_around_them(planned):
    for stages in (3, '"auto"'):
        document = planned(f"partition.stages={stages}")
        assert any(set(NODES[1:4]) <= set(names) for names in stages_of(document))
    assert stages_of(planned("partition.stages=3")) == [NODES[:1], NODES[1:4], NODES[4:]]
    assert len(stages_of(planned("partition.untie=true"))) == 4


@pytest.mark.parametrize(
    ("change", "begins"),
    [
        ("partition.stages=4", '4 stages are too many: nodes "b1" and "b3" share the parameter'),
        ('partition.stages="per-block"', 'nodes "b1" and "b3" share the parameter'),
    ],
)
def test_a_refusal_names_the_most_stages_that_there_can_be(planned, change, begins):
    said = planned(change, "partition.devices=1")
    assert begins in said
    assert "blocks.1.linear.weight" in said
    assert "set partition.stages = 3, the most that there can be" in said


def test_frozen_parameters_may_be_in_several_stages(planned):
    frozen = planned('init.freeze=["b1", "b3"]', "partition.stages=5", "partition.devices=5")
    assert stages_of(frozen) == [[name] for name in NODES]
