"""Whoever takes up a run's directory is told what has changed since, and nothing falsifies the record of weights that are trained."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import petra_graph as pg
from petra_graph.cli.main import main
from petra_graph.plugins.callback import Listener
from petra_graph.training.run import run
from tests.support.runs import MICRO_BATCHES, SPEC, only_run, overrides, summary_of

NET = """\
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
"""
MODULE = """\
[architecture]
name = "module"
options = { build = "net:Net" }
[data]
name = "digits"
batch = 128
[run]
epochs = 1
[checkpoint]
every = "1 epoch"
"""


def files_of(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def resume(*settings: str) -> int:
    return main(["run", "--resume", "latest", *overrides(*settings)])


@pytest.fixture
def changed_code(write, capsys):
    """A network whose code has been changed after its run, and so computes something else with the same weights."""
    write("net.py", NET)
    run(write("spec.toml", MODULE), (), Listener())
    # Of another size: within a second, Python tells compiled code apart by it alone.
    write("net.py", NET.replace("ReLU", "Sigmoid"))
    sys.modules.pop("net")
    capsys.readouterr()
    return "changed since the training: the network: for the same samples and weights its outputs differ by "


def test_a_network_that_computes_something_else_is_used_only_where_that_is_meant(changed_code, capsys):
    finished, digit = pg.open_run(only_run()), np.zeros((1, 8, 8), np.uint8)
    for use in (finished.load, partial(finished.predict, digit), partial(finished.export, "safetensors")):
        with pytest.raises(pg.SpecError, match=changed_code):
            use()
        with pytest.warns(UserWarning, match=changed_code):
            use(changed=True)
    command = ["export", "latest", "--format", "safetensors"]
    assert main(command) == 2
    refused = capsys.readouterr()
    assert refused.out == ""
    assert f"has {changed_code}" in refused.err
    assert "--changed, in Python changed=True" in refused.err
    assert main([*command, "--changed"]) == 0
    assert capsys.readouterr().err.startswith(f"warning: {changed_code}")


def test_an_evaluation_and_a_resume_name_changed_code_and_the_summary_keeps_it(changed_code, capsys):
    assert main(["evaluate", "latest"]) == 0
    assert capsys.readouterr().err.startswith(f"warning: {changed_code}")
    assert resume("run.epochs=2") == 0
    told = capsys.readouterr().err
    assert "\nchanged: run.epochs: 1 then, 2 now\n" in told
    assert "\nwarning: changed since the training before: the network: for the same samples" in told
    changed = summary_of(only_run())["changed"]
    assert changed[0] == f"before forward {MICRO_BATCHES}: run.epochs: 1 then, 2 now"
    assert changed[1].startswith(f"before forward {MICRO_BATCHES}: the network: ")


EARLY = """
[[callback]]
name = "early-stopping"
options = { metric = "train/loss", patience = 1, min_delta = 100.0 }
"""
DONE = "nothing is left to train: run.epochs is 2; set it higher to continue"


@pytest.mark.parametrize(("more", "epochs", "said"), [("", 2, DONE), (EARLY, 5, "the run stopped early")])
def test_a_run_that_is_done_or_stopped_early_stays_as_it_is(write, capsys, more, epochs, said):
    """`method.name` was set on it: from then on the weights of PETRA were those of backpropagation, by all records."""
    run(write("a.toml", SPEC + more), ["checkpoint.every='1 epoch'", f"run.epochs={epochs}"], Listener())
    before = files_of(only_run())
    capsys.readouterr()
    for settings in (("method.name=backprop",), ()):
        assert resume(*settings) == 0
        assert said in capsys.readouterr().err
        assert files_of(only_run()) == before
