"""A step of the start that takes long is said, with the line of code where it is."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path

import pytest

from petra_graph.training import start_reporter
from petra_graph.training.prepared_run import prepare
from petra_graph.training.start_reporter import StartReporter, where
from tests.support.forks import RUN, SPEC, ended, ranks, until

HANGS = """\
import time
from petra_graph.catalog.blocks.residual import RevMlp

class Hangs(RevMlp):
    def residual(self, x):
        if x.device.type != "meta" and len(x) != 2:  # not while shapes and costs are measured
            {fault}
        return super().residual(x)
"""


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(start_reporter, "_SECONDS", (0.05, 0.15))
    monkeypatch.setattr(start_reporter, "_AGAIN_SECONDS", 0.05)


def test_it_says_what_takes_long_and_where_and_nothing_else(soon):
    said = []
    reporter = StartReporter("rank 3: ", say=said.append)
    with reporter.step("what is quick"):
        pass
    with reporter.step("trying node \x1b"):
        until(lambda: len(said) > 1)
    assert not [thread for thread in threading.enumerate() if thread.name == "start reporter"]
    for text in said:
        assert re.fullmatch(r"rank 3: still trying node \\u001b \(\d+ s\), at .+\.py:\d+", text)


def test_no_line_is_said_of_what_is_ours(soon):
    said = []
    reporter = StartReporter(say=said.append)
    with reporter.step('opening the data set "image-folder"', ours=True):
        until(lambda: bool(said))
    assert re.fullmatch(r'still opening the data set "image-folder" \(\d+ s\)', said[0])


def test_the_line_is_the_author_s_and_not_the_library_s():
    found, ready = [], threading.Event()

    def hang():
        ready.wait()

    thread = threading.Thread(target=hang)
    thread.start()
    until(lambda: bool(found.append(where(thread.ident)) or found[-1]))
    ready.set()
    thread.join()
    assert found[-1].startswith(f"{__file__}:")
    assert where(0) == ""


def test_a_block_that_hangs_is_named(write, soon, capfd):
    """The start hung in silence."""
    write("hangs.py", HANGS.format(fault="Hangs.slept = getattr(Hangs, 'slept', None) or time.sleep(0.5) or 1"))
    write("shared.toml", SPEC.replace('block = "rev-mlp"', 'block = "hangs:Hangs"', 1))
    prepare("shared.toml")
    said = [line for line in capfd.readouterr().err.splitlines() if "hangs.py:7" in line]
    assert said
    assert all(line.startswith('still trying node "near": block "hangs:Hangs" (') for line in said)


SLOW = """\
import time
import numpy as np
import torch
from petra_graph.blocks import AdditiveCoupling
from petra_graph.plugins import DataFacts

{in_module}

class Layer(AdditiveCoupling):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        {in_shapes}

    def residual(self, x):
        return x.tanh()

class Split:
    def __len__(self):
        return 40

    def fetch(self, indices, *, seed, epoch):
        return torch.zeros(len(indices), 2), torch.zeros(len(indices), dtype=torch.int64)

class Data:
    classes = 2
    facts = DataFacts(shape=(2,), dtype="float32", classes=2)

    def __init__(self, options):
        {in_data}
        self.train = self.test = Split()
"""
STEPS = {
    "in_module": "checking the specification and its plugins",
    "in_shapes": "measuring the network's shapes",
    "in_data": 'opening the data set "slow:Data"',
}


@pytest.mark.parametrize("place", STEPS)
def test_what_hangs_before_the_run_is_named_too(write, soon, capfd, monkeypatch, place):
    """Imports, shapes and a data set's files hung in silence."""
    monkeypatch.delitem(sys.modules, "slow", raising=False)
    code = SLOW.format(**{one: "time.sleep(0.2)" if one == place else "pass" for one in STEPS})
    number = 1 + [line.strip() for line in code.splitlines()].index("time.sleep(0.2)")
    write("slow.py", code)
    nodes = '[[graph.node]]\nname = "stem"\nblock = "linear-stem"\noptions = { features = 4 }\n'
    nodes += '[[graph.node]]\nname = "layer"\nblock = "slow:Layer"\n'
    nodes += '[[graph.node]]\nname = "head"\nblock = "pool-linear"\noptions = { outputs = 2 }\n'
    data = '[data]\nname = "slow:Data"\nbatch = 10\n'
    write("shared.toml", f'name = "slow"\n{data}[optimizer]\nname = "sgd"\n[run]\nepochs = 1\n{nodes}')
    prepare("shared.toml")
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("still ")]
    assert any(f"{STEPS[place]} (" in one and one.endswith(f"slow.py:{number}") for one in said), said


@pytest.mark.processes
def test_the_watchdog_names_what_hangs(write, here):
    write("hangs.py", HANGS.format(fault="time.sleep(1000)"))
    text = SPEC.replace('block = "rev-mlp"', 'block = "hangs:Hangs"', 1)
    write("shared.toml", text.replace("[run]", "[run]\nwatchdog = 4"))
    with ranks(RUN, RUN) as running:
        assert ended(running) == [1, 1]
    said = "".join(one.said for one in running)
    assert 'trying node "near": block "hangs:Hangs", at ' in said
    assert "hangs.py:7, has taken 4 s, and run.watchdog allows 4" in said
    assert "see what hangs in it, or raise run.watchdog" in said
    assert "Traceback" not in said
    assert not Path("runs").exists()
