"""The fingerprint of a run shows what its network computes of its data, whatever changed it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from petra_graph.training.identity import Fingerprint
from petra_graph.training.prepare import prepare
from tests.support.runs import SPEC

NET = """\
from pathlib import Path
from torch import nn, tensor

ROWS = [(tensor([float(i)] * 4), i % 2) for i in range(8)]

LOSS = 1.0

class Scaled(nn.CrossEntropyLoss):
    def forward(self, output, target):
        return super().forward(output, target) * LOSS

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        self.scale = float(Path("scale.txt").read_text())

    def nodes(self):
        return {"all": self}

    def forward(self, x):
        return super().forward(x) * self.scale
"""
OWN = """\
[architecture]
name = "module"
options = { build = "net:Net" }
[loss]
name = "net:Scaled"
[data]
name = "torch"
batch = 4
options = { train = "net:ROWS", test = "net:ROWS", classes = ["a", "b"] }
"""


@pytest.fixture
def own(write):
    write("net.py", NET)
    write("scale.txt", "1.0")
    return write("own.toml", OWN)


def test_what_is_as_it_was_has_the_same_and_so_has_its_file(here, write):
    spec = write("a.toml", SPEC)
    one, again = prepare(spec).fingerprint, prepare(spec, ["partition.stages=2", "run.seed=1"]).fingerprint
    assert one.changes(again.data, *prepare(spec).fingerprint.found[1:]) == []
    one.write(here)
    assert Fingerprint.read(here).changes(*one.found) == []
    assert len(one.outputs) == 8 * 10
    assert Fingerprint.read(here / "elsewhere") is None


@pytest.mark.parametrize(
    ("file", "before", "after", "said"),
    [
        ("scale.txt", "1.0", "1.1", "the network: for the same samples and weights its outputs differ by 1.0e-01"),
        ("net.py", "nn.Tanh", "nn.Sigmoid", "the network: for the same samples and weights its outputs differ"),
        ("net.py", "* LOSS", "* 2.0", "the loss: of the same outputs it was "),
        ("net.py", "[float(i)]", "[i / 2]", "the data: "),
        ("net.py", "i % 2", "1 - i % 2", "the data: "),
        ("own.toml", '["a", "b"]', '["b", "a"]', "the data: "),
    ],
)
def test_a_change_shows_itself(own, file, before, after, said):
    then = prepare(own).fingerprint
    Path(file).write_text(Path(file).read_text().replace(before, after))
    sys.modules.pop("net")
    now = prepare(own).fingerprint
    (told,) = then.changes(*now.found)
    assert told.startswith(said)


def test_rounding_is_no_change(here, write):
    found = prepare(write("a.toml", SPEC)).fingerprint
    assert found.changes(found.data, [one * (1 + 1e-5) for one in found.outputs]) == []
