"""Plugins of every kind in a file beside the spec, without a package: they train, on one process and on two, to the same bits."""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from pathlib import Path

import pytest

import petra_graph as pg
from petra_graph.cli.main import main
from petra_graph.plugins.kinds import BLOCK, KINDS

MODULE = '''
import torch
from torch import nn

from petra_graph.blocks import AdditiveCoupling
from petra_graph.plugins import Callback, DataFacts, NodeSpec, Problem, SpecError


class Layer(AdditiveCoupling):
    def __init__(self, inputs):
        super().__init__(inputs)
        self.linear = nn.Linear(inputs[0][0], inputs[0][0])

    def residual(self, x):
        return self.linear(x).tanh()


def network(facts, *, blocks: int = 2):
    return (
        NodeSpec(name="stem", block="linear-stem", options={"features": 4}),
        NodeSpec(name="layer", block="beside:Layer", repeat=blocks),
        NodeSpec(name="head", block="pool-linear", options={"outputs": facts.classes}),
    )


def optimizer(groups, *, lr: float = 0.05):
    return torch.optim.RMSprop([*groups.decayed, *groups.undecayed], lr=lr)


def schedule(update, horizon):
    return 1 / (1 + update)


class Smoothed:
    def __call__(self, output, target):
        return nn.functional.cross_entropy(output, target, label_smoothing=0.1)

    def metrics(self, output, target):
        margin = output.detach().amax(1) - output.detach().amin(1)
        return {"top1": (output.detach().argmax(1) == target).sum(), "margin": margin.sum()}


class Spread:
    """How far the outputs lie apart."""

    share = False
    better = "lower"

    def __init__(self):
        self.outputs = []

    def update(self, output, target):
        self.outputs.append(output)

    def compute(self):
        return torch.cat(self.outputs).std()


class Split:
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def fetch(self, indices, *, seed, epoch):
        numbers = torch.as_tensor(indices)
        return torch.stack([numbers.sin(), (3 * numbers).cos()], 1), (numbers.sin() > 0).long()


class Points:
    """Points in two classes."""

    facts = DataFacts(shape=(2,), dtype="float32", classes=2)

    def __init__(self, *, samples: int = 64):
        if samples < 32:
            raise SpecError(Problem(message="too few samples", hint="give 32", path=("samples",)))
        self.train, self.test = Split(samples), Split(16)


class Lines(Callback):
    def started(self, run):
        self.file = (run.directory / "lines.txt").open("a")

    def record(self, *, epoch, step, values):
        print(*values, file=self.file)

    def close(self):
        self.file.close()


class Once(Callback):
    """Ends after the first epoch."""

    changes = "length"

    def __init__(self):
        self.epochs = 0

    def epoch_ended(self, report):
        self.epochs = report.epoch

    def stops(self):
        return "once is enough" if self.epochs else ""
'''
SPEC = """
name = "beside"

[architecture]
name = "beside:network"
options = { blocks = 3 }

[optimizer]
name = "beside:optimizer"
options = { lr = 0.02 }

[lr_schedule]
name = "beside:schedule"

[loss]
name = "beside:Smoothed"

[data]
name = "beside:Points"
batch = 16
options = { samples = 64 }

[run]
epochs = 3

[[metric]]
name = "beside:Spread"
recorded_as = "spread"

[[callback]]
name = "beside:Lines"

[[callback]]
name = "beside:Once"
"""


@pytest.fixture
def folder(here, write, monkeypatch):
    """The module lies beside the spec, and the command runs elsewhere."""
    write("specs/beside.py", MODULE)
    write("specs/beside.toml", SPEC)
    (here / "work").mkdir()
    monkeypatch.chdir(here / "work")
    return here


def test_the_spec_has_every_kind():
    spec = tomllib.loads(SPEC)
    kinds = {kind.table: kind for kind in KINDS}
    assert {kinds[table] for table in spec if table in kinds} | {BLOCK} == {kind for kind in KINDS if kind.table} | {
        BLOCK
    }


def test_they_train_and_their_metrics_are_shown(folder, capsys):
    assert main(["validate", "../specs/beside.toml"]) == 0
    capsys.readouterr()
    assert main(["run", "../specs/beside.toml", "--json"]) == 0
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert summary["stopped_early"].endswith("once is enough")
    assert set(summary["test"]) == {"loss", "top1", "margin", "spread"}
    assert "margin" in printed.err.splitlines()[-1]
    directory = Path(summary["directory"])
    assert "test/margin" in (directory / "lines.txt").read_text()
    assert main(["evaluate", str(directory)]) == 0  # the classes are found again, from elsewhere
    assert "margin" in capsys.readouterr().out
    assert main(["report", str(directory)]) == 0
    page = (directory / "report.html").read_text()
    assert "final test/margin" in page


def test_a_refused_option_is_where_it_is_written(folder, capsys):
    assert main(["run", "../specs/beside.toml", "--dry-run", "--set", "data.options.samples=8"]) == 2
    assert capsys.readouterr().err == ("--set data.options.samples=8: too few samples\n    help: give 32\n")


def test_functions_and_classes_stand_for_their_names_in_code(folder):
    sys.path.append(str(folder / "specs"))
    beside = importlib.import_module("beside")

    spec = pg.make_spec(
        architecture={"name": beside.network},
        optimizer={"name": beside.optimizer},
        loss={"name": beside.Smoothed},
        data={"name": beside.Points, "batch": 16},
    )
    assert (spec.architecture.name, spec.optimizer.name) == ("beside:network", "beside:optimizer")
    with pytest.raises(pg.SpecError, match="has no name at the top level of a module"):
        pg.make_spec(loss={"name": lambda options: None}, data={"name": beside.Points})
