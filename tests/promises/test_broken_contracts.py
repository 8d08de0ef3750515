"""A plugin that breaks its contract ends a run, and is named: at once with exit code 4, or by a note on its own exception."""

from __future__ import annotations

import pytest

from petra_graph.cli.main import main

SPEC = """
name = "contracts"
[architecture]
name = "revnet"
options = { depth = 18, width = 0.05 }
[data]
name = "random"
batch = 4
options = { shape = [3, 8, 8], classes = 3, train = 16, test = 8 }
[optimizer]
options = { lr = 0.1 }
[run]
epochs = 1
"""
MODULE = """
import torch
from petra_graph.plugins import Callback, DataFacts

class Loss:
    def __call__(self, output, target): return torch.nn.functional.cross_entropy(output.float(), target)
    def metrics(self, output, target): return {}

class VectorLoss(Loss):
    def __call__(self, output, target): return torch.nn.functional.cross_entropy(output, target, reduction="none")

class Raising(Loss):
    def __call__(self, output, target): raise RuntimeError("no such class")

class RaisingMetrics(Loss):
    def metrics(self, output, target): return {"top1": missing}

class Refusing(torch.optim.SGD):
    def step(self): raise ValueError("a step too far")

def refusing(groups, *, lr: float = 0.1): return Refusing([*groups.decayed, *groups.undecayed], lr=lr)
def nothing(groups, *, lr: float = 0.1): return None
def forgetful(groups, *, lr: float = 0.1): return torch.optim.SGD(groups.decayed, lr=lr)

class Log(Callback):
    def record(self, *, epoch, step, values): raise OSError("the log is full")

class Back(Callback):
    def epoch_ended(self, report): raise ValueError("it went wrong")

class Split:
    def __len__(self): return 8
    def fetch(self, indices, *, seed, epoch): return torch.zeros(len(indices), 3, 8, 8), torch.full((len(indices),), 7)

class Data:
    train = test = Split()
    facts = DataFacts(shape=(3, 8, 8), dtype="float32", classes=3)
"""
REFUSED = {
    "loss.name=contracts:VectorLoss": (4, "is broken: it returns float32 [4], not a scalar of real numbers"),
    "optimizer.name=contracts:nothing": (4, "is broken: its build returns NoneType, not a torch.optim.Optimizer"),
    "optimizer.name=contracts:forgetful": (4, "is broken: its groups leave out "),
    "data.name=contracts:Data": (1, "targets are 7 .. 7, where the data set declares classes 0 .. 2"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_it_ends_the_run(mistake, write, capsys):
    write("contracts.py", MODULE)
    settings = ["--set", "data.options={}"] if mistake.startswith("data.") else []
    code, said = REFUSED[mistake]
    assert main(["run", write("a.toml", SPEC), "--set", mistake, *settings]) == code
    assert said in capsys.readouterr().err


RAISED = {
    "loss.name=contracts:Raising": 'stage 10 (head) failed in the forward of micro-batch 0: RuntimeError: no such class (loss "contracts:Raising", loss.name)',
    "loss.name=contracts:RaisingMetrics": """NameError: name 'missing' is not defined (loss "contracts:RaisingMetrics", loss.name)""",
    "optimizer.name=contracts:refusing": 'ValueError: a step too far (optimizer "contracts:refusing", at update 1)',
    "callback=[{name='contracts:Log'}]": 'OSError: the log is full (callback "contracts:Log")',
    "callback=[{name='contracts:Back'}]": 'ValueError: it went wrong (callback "contracts:Back")',
}


@pytest.mark.parametrize("mistake", RAISED)
def test_what_raises_in_the_training_is_named_and_its_traceback_kept(mistake, write, here, capsys):
    write("contracts.py", MODULE)
    assert main(["run", write("a.toml", SPEC), "--set", mistake]) == 1
    assert RAISED[mistake] in capsys.readouterr().err
    (failure,) = here.glob("runs/*/failure.txt")
    assert 'contracts.py", line' in failure.read_text()
