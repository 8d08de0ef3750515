"""Mistakes as their makers see them: broken contracts, refused options, networks and data that do not fit, and too much delay."""

import pytest

from petra_graph.cli.main import main
from tests.support.runs import SPEC

BROKEN = """
import torch
from petra_graph.plugins import DataFacts

class Loss:
    def __call__(self, output, target): return torch.nn.functional.cross_entropy(output, target, reduction="none")
    def metrics(self, output, target): return {}

class Raising(Loss):
    def __call__(self, output, target): raise RuntimeError("no such class")

class Refusing(torch.optim.SGD):
    def step(self): raise ValueError("a step too far")

def refusing(groups, *, lr: float = 0.1): return Refusing([*groups.decayed, *groups.undecayed], lr=lr)

class Split:
    def __len__(self): return 64
    def fetch(self, indices, *, seed, epoch): return torch.zeros(len(indices), 8), torch.full((len(indices),), 10)

class Data:
    train = test = Split()
    facts = DataFacts(shape=(8,), dtype="float32", classes=10)
"""
ENDS = {
    "loss.name='broken:Loss'": (4, "is broken: it returns float32 [128], not a scalar"),
    "data={name='broken:Data', batch=16}": (1, "targets are 10 .. 10, where the data set declares classes 0 .. 9"),
    "loss.name='broken:Raising'": (
        1,
        'stage 4 (head) failed in the forward of micro-batch 0: RuntimeError: no such class (loss "broken:Raising", loss.name)',
    ),
    "optimizer.name='broken:refusing'": (1, 'ValueError: a step too far (optimizer "broken:refusing", at update 1)'),
}


@pytest.mark.parametrize("mistake", ENDS)
def test_a_plugin_that_breaks_its_contract_ends_the_run_and_is_named(mistake, write, here, capsys):
    write("broken.py", BROKEN)
    code, said = ENDS[mistake]
    assert main(["run", write("a.toml", SPEC), "--set", mistake]) == code
    assert said in capsys.readouterr().err
    if "Error" in said:  # of the author's own code, whose traceback is kept
        (failure,) = here.glob("runs/*/failure.txt")
        assert 'broken.py", line' in failure.read_text()
