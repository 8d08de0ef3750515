"""Samples of several lengths: a micro-batch is padded to the least declared length that holds its longest sample, and no bit depends on who trains it."""

from __future__ import annotations

import copy
import os
import signal
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from petra_graph.cli.main import main
from petra_graph.runtime.scheduler.scheduler import Scheduler
from petra_graph.training.prepared_run import prepare
from tests.support.forks import alone, children, ended, ranks, until
from tests.support.pages import ROOT, Page, files_of
from tests.support.runs import only_run, summary_of, weights_bytes, without_times

TOLERANCE = 1e-12
LENGTHS = [4, 8, 16]
MODULE = """
import torch
from petra_graph.blocks import AdditiveCoupling, Buffered, Head
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset


class Runs(Dataset):
    \"\"\"Numbers that count up, and the next one of each.\"\"\"

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        longest = torch.tensor([4, 4, 4, 8, 16])[torch.randint(5, (count,), generator=generator)]
        self.lengths = [int(one) - index % 3 for index, one in enumerate(longest)]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        numbers = (index + torch.arange(self.lengths[index] + 1)) % 8
        return numbers[:-1], numbers[1:]


def train():
    return Runs(48, 0)


def test():
    return Runs(10, 1)


class Embedding(Buffered):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        ((longest,),) = inputs
        self.tokens = nn.Embedding(8, 6)
        self.positions = nn.Parameter(torch.randn(longest, 6))

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        return x, x


class Before(AdditiveCoupling):
    \"\"\"Adds what follows from the mean of all positions up to each.\"\"\"

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = nn.Linear(6, 6)

    def residual(self, x):
        count = torch.arange(1, x.shape[1] + 1, dtype=x.dtype).view(1, -1, 1)
        return torch.tanh(self.linear(x.cumsum(1) / count))


class Logits(Head):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = nn.Linear(6, 8)

    def forward(self, a, b):
        return (self.linear(a + b).transpose(1, 2),)


class InQuarters(Buffered):
    \"\"\"Takes sequences apart into four of equal length.\"\"\"

    def forward(self, a, b):
        return tuple(one.view(len(one), 4, -1, 6).reshape(one.shape) for one in (a, b))
"""
SPEC = """
name = "lengths"

[[graph.node]]
name = "embedding"
block = "runs:Embedding"

[[graph.node]]
name = "body"
block = "runs:Before"
repeat = 2

[[graph.node]]
name = "head"
block = "runs:Logits"

[method]
schedule = "1f1b"
accumulation = 2

[data]
name = "torch"
batch = 3
options = { train = "runs:train", test = "runs:test", classes = 8, lengths = [4, 8, 16] }

[optimizer]
options = { lr = 0.05 }

[precision]
compute = "float64"

[run]
epochs = 3
self_check = false
"""


@pytest.fixture
def spec(write):
    write("runs.py", MODULE)
    write("lengths.toml", SPEC)
    return "lengths.toml"


def trained(*words, processes=1, directory="runs"):
    """Train, and return the run's directory."""
    command = ["run", *words, "--set", f"run.directory={directory}"]
    if processes == 1:
        assert main(command) == 0
    else:
        with ranks(*[command] * processes) as running:
            assert ended(running) == [0] * processes
    return only_run(directory)


def test_the_gradient_is_that_of_plain_autograd_over_the_same_padded_tensors(spec):
    plain = "optimizer.options={ lr = 0.1, momentum = 0.0, nesterov = false, weight_decay = 0.0 }"
    prepared = prepare(spec, ["method.name=backprop", "method.schedule=sequential", "lr_schedule.name=constant", plain])
    executors = prepared.executors(prepared.programs)
    modules = {name: copy.deepcopy(module) for one in executors for name, module in one.modules.items()}
    batches = list(prepared.opened.batches)
    lengths = prepared.opened.batches.lengths
    assert [samples.shape[1] for samples, _ in batches] == [targets.shape[1] for _, targets in batches] == lengths
    assert set(lengths) == set(LENGTHS)

    Scheduler(executors).train(iter(batches), range(len(batches)), lambda _: None, lengths=lengths)
    optimizer = torch.optim.SGD([p for one in modules.values() for p in one.parameters()], lr=0.1)
    for first in range(0, len(batches), 2):
        window = batches[first : first + 2]
        weights = [float((targets >= 0).sum()) for _, targets in window]
        optimizer.zero_grad()
        for (samples, targets), weight in zip(window, weights, strict=True):
            streams = (samples,)
            for name in prepared.network.graph.order:
                streams = modules[name](*streams)
            (functional.cross_entropy(streams[0], targets) * weight / sum(weights)).backward()
        optimizer.step()

    for one in executors:
        for name, module in one.modules.items():
            for found, expected in zip(module.parameters(), modules[name].parameters(), strict=True):
                assert torch.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.processes
@pytest.mark.parametrize(
    "words", [(), ("--set", "run.transport=process-group"), ("--set", "precision.channel_dtype=float32")]
)
def test_processes_have_the_bits_of_one(spec, words):
    one, two = trained(spec, *words), trained(spec, *words, processes=2, directory="two")
    assert weights_bytes(two) == weights_bytes(one)
    assert without_times(two) == without_times(one)


@pytest.mark.processes
def test_a_killed_run_goes_on_as_if_nothing_had_happened(spec):
    long = ("--set", "run.epochs=30")
    command = ("run", spec, *long, "--set", "checkpoint.every=3 updates", "--processes", "2", "--max-restarts", "3")
    with alone(*command, ranks_fork=True) as launcher:
        until(lambda: list(Path("runs").glob("*/checkpoints/0*")))
        os.kill(children(launcher.process.pid)[0], signal.SIGKILL)
        assert ended([launcher]) == [0]
    assert summary_of(only_run())["resumed_from"]
    whole = trained(spec, *long, directory="whole")
    assert weights_bytes(only_run()) == weights_bytes(whole)
    assert without_times(only_run()) == without_times(whole)


def test_replicas_pad_their_own_samples(spec):
    whole = prepare(spec, ["partition.replicas=1", "data.batch=6"]).opened.batches
    for number, share in enumerate(whole.sizes[:2]):
        parts = [one.lengths[number] for one in (_replica(spec, 0), _replica(spec, 1))]
        assert max(parts) == whole.lengths[number]
        assert share == 6


def _replica(spec, number):
    return prepare(spec, ["partition.replicas=2", "partition.stages=1"], 2).opened.read_in_part("all", number).batches


def test_a_block_that_refuses_a_length_is_found_before_anything_runs(spec, write, capsys):
    node = '[[graph.node]]\nname = "quarters"\nblock = "runs:InQuarters"\n\n[[graph.node]]\nname = "body"'
    write("lengths.toml", SPEC.replace('[[graph.node]]\nname = "body"', node).replace("[4, 8, 16]", "[6, 8, 16]"))
    assert main(["run", spec]) == 2
    said = capsys.readouterr().err
    assert 'lengths.toml:7:1: samples of length 6, one of 6, 8, 16: node "quarters": block "runs:InQuarters"' in said
    assert "help: leave out this length, or " in said
    assert not Path("runs").exists()


def test_what_is_compiled_has_one_shape(spec, capsys):
    assert main(["run", spec, "--set", "run.compile=true"]) == 2
    said = capsys.readouterr().err
    assert "the data set pads micro-batches to the lengths 4, 8, 16, and compile = true compiles for one shape" in said


def test_a_plan_is_that_of_the_longest(spec, capsys):
    assert main(["plan", spec, "--json"]) == 0
    assert "micro-batches that are padded to the longest length" in capsys.readouterr().out


def test_a_run_with_lengths_is_evaluated_again(spec, capsys):
    trained(spec)
    capsys.readouterr()
    assert main(["evaluate", "latest", "--set", "data.evaluation_batch=2"]) == 0
    assert "10 samples" in capsys.readouterr().out


def test_the_guides_dataset(spec, write):
    page = Page(ROOT / "plugins" / "guide" / "data_sets.md")
    write("notes.py", files_of(page)["notes.py"])
    text = SPEC.replace("runs:train", "notes:train").replace("runs:test", "notes:test")
    write("lengths.toml", text.replace("self_check = false", ""))
    directory = trained(spec)
    assert summary_of(directory)["test"]["top1"] > 0.5


def test_an_evaluation_is_the_mean_over_all_targets(spec):
    values = {}
    for batch in (1, 10):  # one by one, each sample has a length of its own; together, all are padded to the longest
        run = trained(spec, "--set", "run.epochs=1", "--set", f"data.evaluation_batch={batch}", directory=f"by {batch}")
        values[batch] = summary_of(run)["test"]
    for name in ("loss", "top1"):
        assert values[1][name] == pytest.approx(values[10][name], rel=TOLERANCE)
