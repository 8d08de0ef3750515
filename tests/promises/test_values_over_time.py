"""What changes over time: a block's value that follows from the micro-batch, a companion that knows its stage and the epoch."""

from __future__ import annotations

import os
import signal
import sys

import pytest
import torch

from petra_graph.blocks import micro_batch
from petra_graph.blocks.randomness import draws_watched, fork_rng, rng_scope
from petra_graph.cli.main import main
from petra_graph.kinds.listener import Listener
from petra_graph.training.training_run import run
from tests.support.runs import MICRO_BATCHES, SPEC, UPDATES, only_run, weights_bytes

CODE = """
import torch
from torch import nn
from petra_graph.blocks import AdditiveCoupling, micro_batch
from petra_graph.plugins import Callback, Companion

SEEN = []


class Ramped(AdditiveCoupling):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = nn.Linear(inputs[0][0], inputs[0][0])

    def residual(self, x):
        m = micro_batch()
        SEEN.append((m, torch.is_grad_enabled()))
        return self.linear(x).tanh() * (1.0 if m is None else min(1.0, (m + 1) / 16))


class Counts(Callback):
    def __init__(self, options):
        self.parts = []

    def at_stage(self, parameters, stage):
        self.parts.append(Part(stage))
        return self.parts[-1]


class Part(Companion):
    def __init__(self, stage):
        self.stage, self.epochs = stage, []

    def updated(self, updates):
        self.epochs.append((updates - 1) // self.stage.updates_per_epoch + 1)
        SEEN.append((self.stage.index, self.epochs[-1]))
"""


@pytest.fixture
def code(write):
    write("over_time.py", CODE)
    sys.modules.pop("over_time", None)
    yield lambda: sys.modules["over_time"].SEEN
    sys.modules.pop("over_time", None)


RAMPED = SPEC.replace('block = "rev-mlp"', 'block = "over_time:Ramped"').replace(
    "repeat = 2\noptions = { hidden = 12, dropout = 0.1 }", "# once"
)


class InTheSecondEpoch(Listener):
    def trained(self, epoch, micro_batches, means):
        if (epoch, micro_batches) == (2, 3):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_value_of_the_micro_batch_is_the_same_in_forward_and_backward_and_after_a_resumption(write, code):
    spec = write("ramped.toml", RAMPED)
    run(spec, ["run.directory=whole"], Listener())
    seen = code()
    forwards, backwards = ([m for m, graph in seen if graph is which and m is not None] for which in (False, True))
    assert forwards == backwards == list(range(2 * MICRO_BATCHES))
    assert (None, False) in seen
    run(spec, ["run.directory=parts"], InTheSecondEpoch())
    assert main(["run", "--resume", str(only_run("parts"))]) == 0
    assert weights_bytes(only_run("parts")) == weights_bytes(only_run("whole"))


def test_the_kit_accepts_it(write, code):
    write("ramped.toml", RAMPED)
    assert main(["check", "over_time:Ramped"]) == 0


def test_a_companion_knows_its_stage_and_the_epoch(write, code):
    spec = write("counted.toml", SPEC + '\n[[callback]]\nname = "over_time:Counts"\n')
    assert main(["check", "over_time:Counts"]) == 0
    sys.modules["over_time"].SEEN.clear()
    run(spec, [], Listener())
    assert sorted(code()) == sorted(
        (stage, epoch) for stage in (1, 2, 3, 4) for epoch in (1, 2) for _ in range(UPDATES)
    )


def test_the_number_reaches_functions_with_keys_of_their_own_and_nothing_is_recorded_that_asks():
    assert micro_batch() is None
    keyed = fork_rng(7, torch.device("cpu"))
    keyed.micro_batch = 5
    with draws_watched() as drew, keyed, rng_scope("f"):
        assert micro_batch() == 5
    assert drew


def test_compiled_code_cannot_ask():
    compiled = torch.compile(lambda x: x * (micro_batch() or 1), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="micro_batch"):
        compiled(torch.ones(2))
