"""Each check finds what it is for: broken blocks, an optimizer, a loss and a data set; sound ones pass all of them."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import tomli_w
import torch
from attrs import evolve
from torch import nn

from petra_graph.blocks import AdditiveCoupling, Buffered, Reversible
from petra_graph.cli.main import main
from petra_graph.plugins import DataFacts
from petra_graph.testing import DataSetTrial, LossTrial, OptimizerTrial, Trial, examine, parametrize_with_checks, tokens
from tests.support.runs import SPEC

SHAPE = (6,)


class Sound(AdditiveCoupling):
    """What broken couplings are variants of."""

    def __init__(self, inputs):
        super().__init__(inputs)
        self.linear = nn.Linear(inputs[0][0], inputs[0][0])

    def residual(self, x):
        return torch.tanh(self.linear(x))


class WritesToItsInput(Sound):
    def residual(self, x):
        return self.linear(x.mul_(2))


class HasAWrongInverse(Sound):
    def inverse(self, y, s):
        return s, y - 1.01 * self.residual(s)


class HasAWrongGradient(Reversible):
    streams = 1

    def __init__(self, inputs):
        super().__init__(inputs)
        self.log = nn.Parameter(torch.zeros(inputs[0]))

    def forward(self, x):
        return (x * self.log.exp(),)

    def inverse(self, y):
        return (y * (-self.log).exp(),)

    def reverse_vjp(self, outputs, gradients):
        back = super().reverse_vjp(outputs, gradients)
        return type(back)(back.inputs, tuple(2 * one for one in back.gradients))


class Seeds(Sound):
    def residual(self, x):
        if self.training:
            torch.manual_seed(0)
        return nn.functional.dropout(self.linear(x), 0.5, self.training)


class DrawsWithPython(Sound):
    def residual(self, x):
        return self.linear(x) * random.random()


class Counts(Sound):
    calls = 0

    def residual(self, x):
        self.calls += torch.is_grad_enabled()
        return self.linear(x) * (1 + self.calls)


class UpdatesTwice(Sound):
    def __init__(self, inputs):
        super().__init__(inputs)
        self.register_buffer("mean", torch.zeros(()))

    def residual(self, x):
        if self.training:
            self.mean.mul_(0.9).add_(x.detach().mean(), alpha=0.1)
        return self.linear(x)


class NormalisesEvaluation(Buffered):
    def forward(self, x):
        return x - x.mean(0)


class HoldsAPlainTensor(Sound):
    def __init__(self, inputs):
        super().__init__(inputs)
        self.scale = torch.rand(()).item()

    def residual(self, x):
        return self.linear(x) * self.scale


BROKEN = {
    "shapes": (WritesToItsInput, "forward changes its inputs in place"),
    "inverse": (HasAWrongInverse, "inverse(*forward(*x)) is not x: relative error"),
    "gradients": (HasAWrongGradient, "the gradient of the input is not plain autograd's"),
    "randomness": (DrawsWithPython, "the same micro-batch drew other numbers"),
    "statistics": (UpdatesTwice, "mean is not as after one training forward of plain torch"),
    "evaluation": (NormalisesEvaluation, "a batch's outputs are not those of its samples"),
    "state dictionary": (HoldsAPlainTensor, "a block that has loaded it gives other outputs in training"),
}


def test_a_block_that_seeds_torchs_generator_is_named():
    assert broken(trial_of(Seeds))["randomness"] == "it seeds torch's generator: all micro-batches draw the same"


def test_a_block_that_computes_otherwise_a_second_time_is_named():
    assert "a micro-batch gives other outputs a second time" in broken(trial_of(Counts))["gradients"]


class Embeds(Buffered):
    def __init__(self, inputs):
        super().__init__(inputs)
        self.table = nn.Embedding(50, 4)

    def forward(self, x):
        return self.table(x)


def sgd(groups, *, lr=0.1):
    return torch.optim.SGD(groups.param_groups(weight_decay=0.1), lr=lr, momentum=0.9)


class LooksAhead(torch.optim.SGD):
    """Slow weights, every fifth step, in an attribute."""

    steps, slow = 0, None

    @torch.no_grad()
    def step(self, closure=None):
        every = [one for group in self.param_groups for one in group["params"]]
        self.slow = self.slow or [one.clone() for one in every]
        super().step(closure)
        self.steps += 1
        if self.steps % 5 == 0:
            for one, slow in zip(every, self.slow, strict=True):
                one.copy_(slow.lerp_(one, 0.5))


def looks_ahead(groups, *, lr=0.1):
    return LooksAhead(groups.param_groups(weight_decay=0.0), lr=lr)


class SumOfSquares:
    def __call__(self, output, target):
        return output.square().sum()

    def metrics(self, output, target):
        return {}


class Split:
    """Noise that follows from a key, of index, seed and epoch."""

    def __init__(self, key):
        self.key = key

    def __len__(self):
        return 20

    def fetch(self, indices, *, seed, epoch):
        rows = [np.random.default_rng(self.key(int(one), seed, epoch)).random(4, np.float32) for one in indices]
        return torch.from_numpy(np.stack(rows)), torch.as_tensor(indices % 3)


class Data:
    facts = DataFacts(shape=(4,), dtype="float32", classes=3)
    train = test = Split(lambda index, seed, epoch: [seed, epoch, index])


class DrawsAnew(Data):
    train = Split(lambda *_: None)


OTHERS = {
    "checkpoint": (OptimizerTrial.of(looks_ahead), "resumed before step 2 comes to other parameters"),
    "mean over samples": (LossTrial.of(SumOfSquares), "and the mean over batches of them"),
    "samples": (DataSetTrial.of(DrawsAnew), "samples of `train` are others at another call"),
}


def broken(trial):
    return {one.check: one.found for one in examine(trial) if one.status == "broken"}


def trial_of(block):
    return Trial.of(block, [SHAPE] * (1 if block.streams is None or block.streams == 1 else 2))


@pytest.mark.parametrize("check", BROKEN)
def test_a_broken_block_is_named(check):
    block, message = BROKEN[check]
    assert message in broken(trial_of(block))[check]


def test_what_torch_raises_is_told_at_the_line_that_called_it():
    assert f"it raised RuntimeError at {__file__}:" in broken(trial_of(Embeds))["shapes"]


@pytest.mark.parametrize("check", OTHERS)
def test_a_broken_optimizer_loss_and_data_set_are_named(check):
    trial, message = OTHERS[check]
    (found,) = broken(trial).values()
    assert message in found


@parametrize_with_checks(
    trial_of(Sound), Trial.of(Embeds, [(3,)], draw=tokens(50)), OptimizerTrial.of(sgd), DataSetTrial.of(Data)
)
def test_a_sound_plugin_passes(check):
    check()


MINE = """
from petra_graph.blocks import AdditiveCoupling


class Right(AdditiveCoupling):
    def residual(self, x):
        return x.tanh()


class Wrong(Right):
    def inverse(self, y, s):
        return s, y - 5 * self.residual(s)
"""


def test_the_verb_names_the_broken_check_and_exits_with_4(write, capsys):
    write("mine.py", MINE)
    assert main(["check", "blocks/mine:Right", "--inputs", "6,6"]) == 0
    assert "blocks/Right: 7 kept\n" in capsys.readouterr().out
    assert main(["check", "blocks/mine:Wrong", "--inputs", "6,6", "--json"]) == 4
    (result,) = json.loads(capsys.readouterr().out)
    assert next(one["check"] for one in result["checks"] if one["status"] == "broken") == "inverse"
    assert main(["check", "token-cross-entropies"]) == 2
    assert "there is no kind and no plugin" in capsys.readouterr().err
    assert main(["check", "mine:Right"]) == 2
    assert "say the kind as well: blocks/mine:Right" in capsys.readouterr().err


def test_the_verb_checks_a_specification_at_its_own_shapes(write, capsys):
    write("a.toml", SPEC)
    assert main(["check", "a.toml"]) == 0
    out = capsys.readouterr().out
    assert 'node "stem", block' in out
    assert 'optimizer "sgd": 1 kept' in out
    assert 'data set "digits": 1 kept' in out


class OneClassAfterAnother(torch.utils.data.Dataset):
    """As images in a folder for each class."""

    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.full(SHAPE, float(index)), index // 16


class WeighsClasses:
    def __call__(self, output, target):
        return nn.functional.cross_entropy(output, target, weight=output.new_tensor([1.0, 5.0]))


def test_a_loss_is_checked_with_samples_from_all_over_the_data(write, capsys):
    mine = f"{__name__}:OneClassAfterAnother"
    data = {"name": "torch", "batch": 8, "options": {"train": mine, "test": mine, "classes": 2}}
    table = tomli_w.dumps({"data": data, "loss": {"name": f"{__name__}:WeighsClasses"}})
    network = SPEC[: SPEC.index("[data]")].replace("outputs = 10", "outputs = 2")
    write("a.toml", network + table)
    assert main(["check", "a.toml"]) == 4
    assert "the loss of 8 samples is" in capsys.readouterr().out


class ReturnsTwoChannels(AdditiveCoupling):
    def residual(self, x):
        return x[:, :2]


def test_a_residual_of_another_shape_is_a_broken_promise(capsys):
    """It was not tried, as a block that reads other shapes, and the exit code was 0."""
    assert main(["check", f"blocks/{__name__}:ReturnsTwoChannels"]) == 4
    assert "residual must return a tensor of its input's shape" in capsys.readouterr().out


class AlwaysRaises(AdditiveCoupling):
    def residual(self, x):
        raise RuntimeError("always")


def test_a_block_of_which_nothing_could_be_checked_has_not_passed(capsys):
    assert main(["check", f"blocks/{__name__}:AlwaysRaises"]) == 2
    assert "(RuntimeError: always" in capsys.readouterr().out


class StartsInFloat32(Sound):
    """Its zeros have one type whatever the streams have, as in many recurrent networks."""

    def residual(self, x):
        return self.linear(x) + torch.zeros(len(x), 6).index_add_(0, torch.arange(len(x)), self.linear(x))


def test_a_block_is_checked_in_the_precision_of_the_run():
    assert {"shapes", "inverse", "gradients"} <= broken(trial_of(StartsInFloat32)).keys()
    outcomes = {one.check: one for one in examine(evolve(trial_of(StartsInFloat32), compute="float32"))}
    assert {one.status for one in outcomes.values()} == {"kept"}
    for block, check in ((HasAWrongInverse, "inverse"), (HasAWrongGradient, "gradients")):
        assert check in broken(evolve(trial_of(block), compute="float32"))


def spec_of(block):
    return SPEC.replace('"rev-mlp"', f'"mine:{block}"').replace("hidden = 12, dropout = 0.1", "")


@pytest.mark.parametrize("compute", ["float32", "bfloat16", "float64"])
def test_a_run_inverts_the_blocks_of_strangers_first(write, capsys, compute):
    write("mine.py", MINE)
    write("right.toml", spec_of("Right"))
    write("wrong.toml", spec_of("Wrong"))
    words = ("--dry-run", "--set", f"precision.compute={compute}")
    assert main(["run", "right.toml", *words]) == 0
    capsys.readouterr()
    assert main(["run", "wrong.toml", *words]) == 4
    err = capsys.readouterr().err
    assert (
        'block "Wrong" of' in err
        or 'block "mine:Wrong" breaks a promise (inverse): inverse(*forward(*x)) is not x' in err
    )
    assert "wrong.toml:" in err
