"""What would train other numbers than its forward's is refused, and mistakes are named."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from petra_graph.autograd import reversible
from petra_graph.blocks import NoOptions, Reversible
from tests.support.sequences import FEATURES, Masked, branch, expect_plain, inputs, sequence


def test_parameters_that_changed_since_the_forward_are_refused():
    made = sequence()
    output = made(inputs())
    with torch.no_grad():
        made[1].function[0].weight.add_(1)
    with pytest.raises(RuntimeError, match=r"block 1 is not as it was .* parameters were modified by an inplace op"):
        output.sum().backward()


def test_a_frozen_parameter_or_an_argument_that_changed_is_refused():
    made = reversible([Masked() for _ in range(3)]).double()
    made[2].function.linear.weight.requires_grad_(requires_grad=False)
    for changed in ("parameter", "argument"):
        mask = torch.ones(4, FEATURES, dtype=torch.float64)
        output = made(inputs(), mask)
        with torch.no_grad():
            (mask if changed == "argument" else made[2].function.linear.weight).mul_(2)
        with pytest.raises(
            RuntimeError, match=f"block 2 is not as it was .*{changed}.* modified by an inplace operation"
        ):
            output.sum().backward()


class Buffers(nn.Module):
    """It reads a mask, and its calls, which it counts."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(FEATURES, FEATURES)
        self.register_buffer("mask", torch.ones(FEATURES))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return torch.tanh(self.linear(x)) * self.mask * int(self.calls)


@pytest.mark.parametrize("name", ["mask", "running_mean"])
def test_a_buffer_that_changed_since_the_forward_that_reads_it_is_refused(name):
    """Gradients were 19 % off: frozen normalisation followed other data, or another mask was set."""
    made = (reversible([Buffers() for _ in range(3)]) if name == "mask" else sequence(depth=3)).double()
    if name != "mask":
        for block in made:
            block.function[1].eval()
    loss = made(inputs()).sum()
    dict(made[2].named_buffers())[f"function.{'' if name == 'mask' else '1.'}{name}"].add_(1)
    with pytest.raises(
        RuntimeError, match=rf"block 2 is not as it was .* its buffer function\..*{name} was modified by an"
    ):
        loss.backward()


@pytest.mark.parametrize("functions", [Buffers, branch])
def test_buffers_that_every_forward_writes_are_not(functions):
    """Several forwards before their backwards: statistics and counters follow each, and a gradient reads those of its own."""
    made = reversible([functions() for _ in range(3)]).double()
    plain = copy.deepcopy(made)
    plain.keep_graphs = 3
    for network in (made, plain):
        torch.manual_seed(0)
        losses = [network(inputs(seed=seed)).square().sum() for seed in range(3)]
        for loss in losses:
            loss.backward(retain_graph=True)
        losses[1].backward()
    for one, other in zip(made.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert all(map(torch.equal, made.buffers(), plain.buffers()))


class Late(Buffers):
    """It writes to its mask in the second call only."""

    def forward(self, x):
        if self.linear.bias[0] > 0:
            self.mask += 1
        return torch.tanh(self.linear(x)) * self.mask


def test_a_buffer_that_is_written_after_other_forwards_is_refused_once():
    made = reversible([Late()]).double()
    with torch.no_grad():
        made[0].function.linear.bias.fill_(-1)
    made(inputs()).sum().backward()
    with torch.no_grad():
        made[0].function.linear.bias.fill_(1)
    loss = made(inputs()).sum()
    with pytest.raises(RuntimeError, match=r"block 0 is not as it was .* its buffer function\.mask was modified"):
        loss.backward()
    expect_plain(made, inputs())


class Counted(Reversible):
    """It has an inverse, and no `reverse_steps`: its backward evaluates it twice."""

    def __init__(self):
        super().__init__(((FEATURES,),) * 2, NoOptions())
        self.inner = Buffers()

    def forward(self, x, t):
        return t + self.inner(x), x

    def inverse(self, y, s):
        return s, y - self.inner(s)


def test_buffers_that_a_block_would_advance_twice_are_refused():
    loss = reversible([Counted()]).double()(inputs()).sum()
    with pytest.raises(RuntimeError, match=r"block 0 writes to its buffers, .* define reverse_steps"):
        loss.backward()


def test_statistics_that_training_does_not_read_are_not():
    made = sequence(depth=2)
    for block in made:
        block.function[1].track_running_stats = False
    loss = made(inputs()).sum()
    for block in made:
        block.function[1].track_running_stats = True
    made(inputs())
    loss.backward()


@pytest.mark.parametrize("part", ["all", "a module"])
def test_another_mode_than_the_forwards_is_refused(part):
    made = sequence()
    output = made(inputs())
    (made if part == "all" else made[3].function[3]).eval()
    with pytest.raises(RuntimeError, match=r"block 3 is not as it was .* it changed between training and evaluation"):
        output.sum().backward()


def test_another_module_than_the_forwards_is_refused():
    made = sequence()
    loss = made(inputs()).sum()
    made[3].function[0] = copy.deepcopy(made[3].function[0])
    with pytest.raises(RuntimeError, match=r"block 3 is not as it was .* modules was added, removed or replaced"):
        loss.backward()


def test_weights_from_a_cache_without_a_graph_are_refused():
    made = sequence(dropout=0.0)
    nn.utils.parametrizations.weight_norm(made[1].function[0])
    expect_plain(made, inputs())
    with nn.utils.parametrize.cached(), pytest.raises(RuntimeError, match=r"parametrize.cached\(\) keeps"):
        made(inputs())


def test_outputs_that_changed_since_the_forward_are_refused():
    made = sequence()
    outputs = made((inputs(), inputs(seed=1)))
    with torch.no_grad():
        outputs[0].detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        sum(outputs).sum().backward()


def test_a_second_derivative_is_refused():
    made, x = sequence(), inputs()
    with pytest.raises(RuntimeError, match=r"a second derivative was asked for .* keep_graphs=len\(sequence\)"):
        torch.autograd.grad(made(x).sum(), x, create_graph=True)
    made.keep_graphs = len(made)
    (first,) = torch.autograd.grad(made(x).square().sum(), x, create_graph=True)
    first.square().sum().backward()
    assert x.grad is not None


class Returning(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, _):
        return self.value


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: reversible([branch()], coupling="swap"),
            ValueError,
            r'coupling must be one of additive, .* \(got "swap"\)',
        ),
        (
            lambda: reversible([branch()], momentum=0.5),
            TypeError,
            r'"additive" has the coefficients: none \(got momentum\)',
        ),
        (lambda: reversible([3]), TypeError, r"each entry must be a module F, a pair .* \(got int\)"),
        (lambda: reversible([(branch(), branch())], coupling="momentum"), ValueError, "pairs of functions are coupled"),
        (lambda: reversible([branch()], coupling="momentum", split=1), ValueError, "split halves the input"),
        (lambda: reversible([branch()], keep_graphs=-1), ValueError, "keep_graphs must be at least 0"),
        (
            lambda: reversible([branch()] * 64, coupling="exact-bdia"),
            ValueError,
            r"room for 63 exact-bdia blocks \(got 64\)",
        ),
        (lambda: reversible([branch()], split=1)(torch.zeros(2, 5)), ValueError, "dimension 1 must be even"),
        (
            lambda: reversible([branch()], split=2)(torch.zeros(2, 6)),
            ValueError,
            "split is dimension 2, and the input has 2",
        ),
        (lambda: reversible(nn.Linear(2, 2)), TypeError, r"several modules, one a block \(got one, Linear\)"),
        (
            lambda: reversible([branch()])((torch.zeros(2, 6),) * 3),
            ValueError,
            r'"additive" has 2 streams \(got a tuple of 3\)',
        ),
        (lambda: reversible([branch()])(()), ValueError, r"2 streams \(got a tuple of 0\)"),
        (
            lambda: reversible([branch()]).append(branch())(torch.zeros(2, 6)),
            TypeError,
            "block 1 is not a reversible block",
        ),
        (lambda: reversible([branch()])(torch.zeros(2, 6, dtype=torch.complex64)), TypeError, "streams must be real"),
        (lambda: reversible([nn.LazyLinear(FEATURES)])(torch.zeros(2, 6)), RuntimeError, "has no shape yet"),
        (
            lambda: reversible([branch()], coupling="momentum", momentum=0.0),
            ValueError,
            r"0 .. 1 and not be 0 \(got 0.0\)",
        ),
        (lambda: reversible([branch()], coupling="bdia", magnitude=0.0), ValueError, "magnitude must lie in"),
        (
            lambda: reversible([Returning(None)], coupling="affine")(torch.zeros(2, 6)),
            TypeError,
            r"\(s, u\) .*got NoneType",
        ),
        (lambda: reversible([Returning((1, 2, 3))], coupling="affine")(torch.zeros(2, 6)), TypeError, "got tuple"),
        (
            lambda: reversible([Returning(torch.zeros(()))], coupling="affine")(torch.zeros(2, 6)),
            TypeError,
            r"got \[\]",
        ),
        (
            lambda: reversible([nn.Linear(FEATURES, 1)])(torch.zeros(2, FEATURES)),
            ValueError,
            "must return a tensor of its",
        ),
        (
            lambda: reversible([nn.LSTM(FEATURES, FEATURES)])(torch.zeros(2, FEATURES)),
            TypeError,
            r"must return a tensor \(got tuple\)",
        ),
    ],
)
def test_mistakes(call, error, message):
    with pytest.raises(error, match=message):
        call()
