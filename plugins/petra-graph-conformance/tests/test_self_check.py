"""Mistakes of plugins that trained silently are found before a run begins, with the right name and what to do."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch

from petra_graph.cli.main import main
from petra_graph.training.prepared_run import prepare
from tests.support.runs import weights_bytes

MODULE = """
import random
import numpy as np
import torch
from torch import nn
from petra_graph.blocks import AdditiveCoupling, Buffered, Reversible


class Right(AdditiveCoupling):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        channels = inputs[0][0]
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.calls = 0

    def residual(self, x):
        return self.norm(self.conv(x)).tanh()


class InverseOff(Right):
    def inverse(self, y, s):
        return s, y - 5 * self.residual(s)

    reverse_steps = Reversible.reverse_steps


class PythonsRandom(Right):
    def residual(self, x):
        return super().residual(x) * random.random()


class Numpys(Right):
    def residual(self, x):
        return super().residual(x) * float(np.random.rand())


class Counting(Right):
    def residual(self, x):
        self.calls += 1
        return super().residual(x) * self.calls


class Narrow(Buffered):
    def forward(self, *streams):
        return tuple(stream.half() for stream in streams)


class Root(Buffered):
    def forward(self, *streams):
        return tuple(stream.sqrt() for stream in streams)


class Truths(Buffered):
    def forward(self, *streams):
        return tuple(stream > 0 for stream in streams)
"""
SPEC = """
name = "checked"

[[graph.node]]
name = "stem"
block = "conv-stem"
options = {{ channels = 8 }}

[[graph.node]]
name = "mine"
block = "checked_blocks:{block}"
kind = "{kind}"

[[graph.node]]
name = "head"
block = "pool-linear"
options = {{ outputs = 10 }}

[data]
name = "digits"
batch = 32
"""
WRONG = {
    "InverseOff": "(inverse)",
    "PythonsRandom": "",
    "Numpys": "",
    "Counting": "",
    "Narrow": "(shapes): an output is float16",
}


@pytest.fixture
def spec(write):
    write("checked_blocks.py", MODULE)

    def made(block):
        kind = "buffered" if block in {"Narrow", "Root", "Truths"} else "reversible"
        return str(write("checked.toml", SPEC.format(block=block, kind=kind)))

    yield made
    sys.modules.pop("checked_blocks", None)


@pytest.mark.parametrize("block", WRONG)
def test_a_block_s_mistake_is_found_by_the_dry_run(spec, capsys, block):
    """All of these trained silently, or were another stage's fault."""
    assert main(["run", spec(block), "--dry-run"]) == 4
    said = capsys.readouterr().err
    assert f'node "mine": block "checked_blocks:{block}" breaks a promise' in said
    assert WRONG[block] in said
    assert "checked.toml:" in said
    assert "Traceback" not in said


def test_a_block_that_returns_no_numbers_is_blamed_and_not_the_next_one(spec, capsys):
    assert main(["run", spec("Truths"), "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert 'node "mine": block "checked_blocks:Truths" returns bool alone, which has no gradient' in said


def test_nothing_is_written_where_the_run_is_refused(spec, here):
    assert main(["run", spec("InverseOff")]) == 4
    assert not (here / "runs").exists()


def test_a_right_block_passes_and_generators_are_as_they_were(spec, capsys):
    before = torch.get_rng_state(), np.random.get_state()[1].tobytes()  # noqa: NPY002
    prepare(spec("Right"))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tobytes() == before[1]  # noqa: NPY002


MASKED = """
import torch
from torch import nn
from petra_graph.plugins import DataFacts, DataSetDeclaration

TOKENS = 12


class Split:
    def __init__(self, count):
        generator = torch.Generator().manual_seed(count)
        self.samples = torch.randint(1, 20, (count, TOKENS), generator=generator)
        self.samples[torch.arange(TOKENS) >= torch.randint(3, TOKENS + 1, (count, 1), generator=generator)] = 0
        self.targets = (self.samples[:, 0] > 9).long()

    def __len__(self):
        return len(self.samples)

    def fetch(self, indices, *, seed, epoch):
        return self.samples[indices], self.targets[indices]


class Data:
    facts = DataFacts(shape=(TOKENS,), dtype="int64", classes=2)

    def __init__(self, options):
        self.train, self.test = Split(64), Split(16)


PADDED = DataSetDeclaration(summary="Padded on the right.", facts=lambda _: Data.facts, build="masked:Data")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(16, 2)
        self.register_buffer("causal", torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1))

    def forward(self, tokens):
        x, pad = self.embed(tokens), tokens == 0
        for layer in self.layers:
            x = layer(x, src_mask=self.causal, src_key_padding_mask=pad)
        return self.head(x[:, 0])
"""


def test_masks_are_those_of_the_samples(write, capsys):
    """Drawn ones passed over all tokens of a sample, of which torch's evaluation makes nan."""
    write("masked.py", MASKED)
    table = 'name = "module"\noptions = { build = "masked:Net" }'
    spec = write("masked.toml", f'name = "m"\n[architecture]\n{table}\n[data]\nname = "masked:PADDED"\nbatch = 8\n')
    assert main(["run", str(spec), "--dry-run"]) == 0
    assert "has not been tried" not in capsys.readouterr().err


def test_what_is_not_finite_for_drawn_streams_is_not_judged(spec, capsys):
    """A root of what the stem keeps above zero."""
    assert main(["run", spec("Root"), "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert 'warning: node "mine" has not been tried: ' in said
    assert "run.self_check = false leaves out the check" in said


def test_it_can_be_switched_off(spec, capsys):
    assert main(["run", spec("Numpys"), "--dry-run", "--set", "run.self_check=false"]) == 0


def test_it_changes_no_bit(spec, capsys):
    weights = []
    for more in ([], ["--set", "run.self_check=false"]):
        assert main(["run", spec("Right"), "--json", "--fast-dev-run", *more]) == 0
        directory = json.loads(capsys.readouterr().out)["directory"]
        weights.append(weights_bytes(directory))
    assert weights[0] == weights[1]


RIGHT = """
import numpy as np
import torch
from petra_graph.plugins import DataFacts, NoOptions
from torch import nn
from torch.nn.functional import cross_entropy


class Weighted(nn.Module):
    \"\"\"Weights of classes, in float32, over the number of samples; unlabelled samples count as zero.\"\"\"

    def __init__(self, options):
        super().__init__()
        self.register_buffer("weight", torch.tensor([1.0, 20.0, 0.5]))

    def forward(self, output, target):
        return cross_entropy(output, target, self.weight, reduction="none").mean()

    def metrics(self, output, target):
        return {"top1": (output.argmax(1) == target).sum(), "loss_of_tests": self(output, target) * len(target)}


class ByWeights(Weighted):
    \"\"\"As torch divides: a mean, if not that of the samples' losses.\"\"\"

    def forward(self, output, target):
        return cross_entropy(output, target, self.weight)

    def metrics(self, output, target):
        return {"top1": (output.argmax(1) == target).sum()}


class Split:
    def __init__(self, augmented):
        self.augmented, self.kept = augmented, {}

    def __len__(self):
        return 48

    def fetch(self, indices, *, seed, epoch):
        return torch.stack([self.sample(int(i), seed, epoch) for i in indices]), self.fetch_targets(indices)

    def fetch_targets(self, indices):
        targets = torch.as_tensor(indices) // 16
        return targets.where(torch.as_tensor(indices) % 5 != 0, -100)

    def sample(self, index, seed, epoch):
        sample = self.kept.setdefault(index, torch.full((6,), index / 48))
        noise = np.random.default_rng([seed, epoch, index] if self.augmented else index).normal(size=6)
        return sample + torch.from_numpy(noise.astype("float32"))


class Sorted:
    facts = DataFacts(shape=(6,), dtype="float32", classes=3)

    def __init__(self, options):
        self.train, self.test = Split(True), Split(False)


def steps(options: NoOptions, horizon):
    table = np.linspace(1, 0.1, horizon.updates)
    return lambda u: table[u]
"""
PLUGINS = """
name = "right"
[[graph.node]]
name = "stem"
block = "linear-stem"
options = { features = 6 }
[[graph.node]]
name = "head"
block = "pool-linear"
options = { outputs = 3 }
[loss]
name = "right_plugins:Weighted"
[lr_schedule]
name = "right_plugins:steps"
[data]
name = "right_plugins:Sorted"
batch = 8
[run]
epochs = 1
"""


@pytest.mark.parametrize("loss", ["Weighted", "ByWeights"])
def test_right_losses_data_sets_and_schedules_pass_and_it_changes_no_bit(write, capsys, loss):
    write("right_plugins.py", RIGHT)
    spec, weights = str(write("right.toml", PLUGINS.replace(":Weighted", f":{loss}"))), []
    for more in ([], ["--set", "run.self_check=false"]):
        assert main(["run", spec, "--json", *more]) == 0
        weights.append(weights_bytes(json.loads(capsys.readouterr().out)["directory"]))
    assert weights[0] == weights[1]
    before = torch.get_rng_state(), np.random.get_state()[1].tobytes()  # noqa: NPY002
    prepare(spec)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tobytes() == before[1]  # noqa: NPY002
