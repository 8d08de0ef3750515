"""One trained run, which all tests of this folder open."""

from __future__ import annotations

from contextlib import chdir

import pytest

from petra_graph.cli.main import main
from tests.support.runs import only_run


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The directory of a run: convolutions with running statistics, an input that is not quadratic, an epoch of noise."""
    folder = tmp_path_factory.mktemp("inference")
    (folder / "net.toml").write_text(NETWORK)
    with chdir(folder):
        assert main(["run", "net.toml"]) == 0
    return only_run(folder / "runs")


@pytest.fixture
def opened(trained):
    from petra_graph.inference.saved_run import SavedRun

    return SavedRun.open(trained)


@pytest.fixture
def letters(write, here):
    """A run of a network of next tokens, which learns the alphabet."""
    write("letters.py", LETTERS)
    assert main(["run", write("letters.toml", NEXT_LETTER)]) == 0


NETWORK = """\
[[graph.node]]
name = "stem"
block = "conv-stem"
options = { channels = 4 }
[[graph.node]]
name = "layer"
block = "rev-basic"
repeat = 2
[[graph.node]]
name = "down"
block = "down-basic"
options = { channels = 8, stride = 2 }
[[graph.node]]
name = "head"
block = "pool-linear"
options = { outputs = 10 }
[checkpoint]
every = "1 epoch"
best = "test/loss"
[data]
name = "random"
batch = 16
evaluation_batch = 24
options = { shape = [3, 8, 6], train = 64, test = 40 }
[run]
epochs = 2
"""
LETTERS = """
import torch
from torch import nn
from petra_graph.blocks import Buffered, Head
from petra_graph.plugins import DataFacts, SpecError


class Alphabet:
    def encode(self, text):
        if not text.islower():
            raise SpecError(f"{text!r} has other letters than a to h", "write small letters")
        return [ord(one) - 97 for one in text]

    def decode(self, tokens):
        return "".join(chr(97 + one) for one in tokens)


class Windows:
    def __len__(self):
        return 32

    def fetch(self, indices, *, seed, epoch):
        letters = (torch.as_tensor(indices)[:, None] + torch.arange(6)) % 8
        return letters[:, :-1].clone(), letters[:, 1:].clone()


class Letters:
    facts = DataFacts(shape=(5,), dtype="int64", classes=8, target_shape=(5,))
    train = test = Windows()

    def __init__(self):
        pass

    @staticmethod
    def codec(facts):
        assert facts.classes == 8
        return Alphabet()


class Table(Buffered):
    def __init__(self, inputs):
        super().__init__(inputs)
        self.table = nn.Embedding(8, 8)

    def forward(self, tokens):
        return self.table(tokens)


class Logits(Head):
    def __init__(self, inputs):
        super().__init__(inputs)
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x).transpose(1, 2)
"""
NEXT_LETTER = """
optimizer = { name = "adamw", options = { lr = 0.1 } }
data = { name = "letters:Letters", batch = 8 }
run = { epochs = 8 }
[[graph.node]]
name = "table"
block = "letters:Table"
kind = "buffered"
[[graph.node]]
name = "logits"
block = "letters:Logits"
kind = "head"
"""
