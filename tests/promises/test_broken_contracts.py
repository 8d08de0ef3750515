"""A plugin that breaks its contract ends a run with exit code 4 and one sentence, which names it and its distribution."""

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
DECLARED = """
import torch
from attrs import frozen
from petra_graph.plugins import Callback, CallbackDeclaration, LoggerDeclaration
from petra_graph.plugins import DataFacts, DataSetDeclaration, LossDeclaration, LrScheduleDeclaration, OptimizerDeclaration, option

@frozen(kw_only=True)
class Rate:
    lr: float = option("rate", default=0.1)

class Loss:
    def __init__(self, options): pass
    def __call__(self, output, target): return torch.nn.functional.cross_entropy(output.float(), target)
    def metrics(self, output, target): return {}

class VectorLoss(Loss):
    def __call__(self, output, target): return torch.nn.functional.cross_entropy(output, target, reduction="none")

class NoMetrics(Loss):
    def metrics(self, output, target): return None

class Raising(Loss):
    def __call__(self, output, target): raise RuntimeError("no such class")

class RaisingMetrics(Loss):
    def metrics(self, output, target): return {"top1": missing}

class Everything(Loss):
    def metrics(self, output, target): return {"top1": torch.tensor(61.0)}

class Refusing(torch.optim.SGD):
    def step(self): raise ValueError("a step too far")

def failing(options, horizon):
    def factor(u):
        if u == 3: raise KeyError("u")
        return 1.0
    return factor

class Log:
    def record(self, *, epoch, step, values): raise OSError("the log is full")
    def close(self): pass

class Back(Callback):
    def epoch_ended(self, report): raise ValueError("it went wrong")

class Split:
    def __len__(self): return "8"
    def fetch(self, indices, *, seed, epoch): ...

class Data:
    train = test = Split()
    facts = DataFacts(shape=(3, 8, 8), classes=3)
    def __init__(self, options): pass

def refusing(groups, options): return Refusing([*groups.decayed, *groups.undecayed], lr=options.lr)
def log(options, run): return Log()
def lbfgs(groups, options): return torch.optim.LBFGS([*groups.decayed, *groups.undecayed])
def nothing(*arguments): return None
def negative(options, horizon): return lambda u: 1 - u

HERE = __name__
VECTOR = LossDeclaration(summary="x", build=f"{HERE}:VectorLoss")
NO_METRICS = LossDeclaration(summary="x", build=f"{HERE}:NoMetrics")
LBFGS = OptimizerDeclaration(summary="x", build=f"{HERE}:lbfgs", options=Rate)
NOTHING = OptimizerDeclaration(summary="x", build=f"{HERE}:nothing", options=Rate)
NEGATIVE = LrScheduleDeclaration(summary="x", build=f"{HERE}:negative")
RAISING = LossDeclaration(summary="x", build=f"{HERE}:Raising")
RAISING_METRICS = LossDeclaration(summary="x", build=f"{HERE}:RaisingMetrics")
EVERYTHING = LossDeclaration(summary="x", build=f"{HERE}:Everything")
REFUSING = OptimizerDeclaration(summary="x", build=f"{HERE}:refusing", options=Rate)
FAILING = LrScheduleDeclaration(summary="x", build=f"{HERE}:failing")
LOG = LoggerDeclaration(summary="x", build=f"{HERE}:log")
BACK = CallbackDeclaration(summary="x", build=f"{HERE}:back")
def back(options): return Back()
DATA = DataSetDeclaration(summary="x", build=f"{HERE}:Data", facts=lambda _: DataFacts(shape=(3, 8, 8), classes=3))
"""
POINTS = """
[petra_graph.losses]
vector = contract_plugins:VECTOR
no-metrics = contract_plugins:NO_METRICS
raising = contract_plugins:RAISING
raising-metrics = contract_plugins:RAISING_METRICS
everything = contract_plugins:EVERYTHING
[petra_graph.optimizers]
refusing = contract_plugins:REFUSING
lbfgs = contract_plugins:LBFGS
nothing = contract_plugins:NOTHING
[petra_graph.lr_schedules]
negative = contract_plugins:NEGATIVE
failing = contract_plugins:FAILING
[petra_graph.loggers]
log = contract_plugins:LOG
[petra_graph.callbacks]
back = contract_plugins:BACK
[petra_graph.datasets]
text-length = contract_plugins:DATA
"""
MISTAKES = {
    "loss.name=vector": 'loss "vector" of my-plugins is broken: it returns a tensor of shape [4], not a scalar: the mean over the samples',
    "loss.name=no-metrics": (
        'loss "no-metrics" of my-plugins is broken: its metrics are None, not a mapping from names to sums; '
        "return {} where there are none"
    ),
    "optimizer.name=lbfgs": (
        'optimizer "lbfgs" of my-plugins is broken: its step() needs closure; '
        "it is called without, after the backwards of a window"
    ),
    "optimizer.name=nothing": 'optimizer "nothing" of my-plugins is broken: its build returns None, not a torch.optim.Optimizer',
    "lr_schedule.name=negative": (
        'learning-rate schedule "negative" of my-plugins is broken: its factor at update 2 is -1, '
        "not a finite number of at least 0 (and with it: pure, cheap)"
    ),
    "data.name=text-length": (
        'data set "text-length" of my-plugins is broken: the length of its split `train` cannot be had: '
        "TypeError: 'str' object cannot be interpreted as an integer"
    ),
}


@pytest.fixture(autouse=True)
def plugins(install):
    install("my-plugins", POINTS, contract_plugins=DECLARED)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_it_ends_the_run(mistake, write, capsys):
    settings = ["--set", "data.options={}"] if mistake.startswith("data.") else []
    code = main(["run", write("a.toml", SPEC), "--set", mistake, *settings])
    printed = capsys.readouterr().err
    assert f"{MISTAKES[mistake]}\n    help: report it to its author\n" in printed
    assert "Traceback" not in printed
    assert code == 4


RAISED = {
    "loss.name=raising": (
        'behind node "head", loss "raising" of my-plugins failed on outputs [4, 3] and targets [4]: RuntimeError: no such class'
    ),
    "loss.name=raising-metrics": (
        'behind node "head", loss "raising-metrics" of my-plugins failed on outputs [4, 3] and targets [4]: '
        "NameError: name 'missing' is not defined"
    ),
    "optimizer.name=refusing": (
        'stage 10 (head), optimizer "refusing" of my-plugins failed at update 1: ValueError: a step too far'
    ),
    "lr_schedule.name=failing": "stage 10 (head), learning-rate schedule \"failing\" of my-plugins failed at update 3: KeyError: 'u'",
    "logger=[{name='log'}]": 'logger "log" failed: OSError: the log is full',
    "callback=[{name='back'}]": 'callback "back" failed: ValueError: it went wrong',
}


@pytest.mark.parametrize("mistake", RAISED)
def test_what_raises_in_the_training_is_named_and_not_the_stage_alone(mistake, write, site, capsys):
    code = main(["run", write("a.toml", SPEC), "--set", mistake])
    printed = capsys.readouterr().err
    assert f"{RAISED[mistake]}\n    help: raised at {site}/contract_plugins.py:" in printed
    assert "Traceback" not in printed
    assert code == (1 if "log" in mistake or "back" in mistake else 4)


def test_a_share_of_more_than_all_samples(write, capsys):
    """Top-1 of 6,189 % was printed as if it were a result."""
    code = main(["run", write("a.toml", SPEC), "--set", "loss.name=everything"])
    assert (
        'loss "everything" of my-plugins is broken: its metric "top1" is 61 of 4 samples, a share of 1525.00%\n'
        "    help: count each sample at most once" in capsys.readouterr().err
    )
    assert code == 4


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (
            "optimizer.name=refusing",
            'optimizer "refusing" of my-plugins failed at update 1: ValueError: a step too far',
        ),
        ("loss.name=raising", 'loss "raising" of my-plugins failed on outputs [2, 3] and targets [2]: RuntimeError'),
    ],
)
def test_a_plan_that_measures_it_names_it_too(mistake, said, write, capsys):
    assert main(["plan", write("a.toml", SPEC), "--set", mistake]) == 4
    assert f"--set {mistake}: {said}" in capsys.readouterr().err
