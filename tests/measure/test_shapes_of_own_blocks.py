"""Shapes of blocks of a user's own: what they return, what they read while they run, what they raise."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from petra_graph.blocks import Buffered, Reversible
from petra_graph.errors import Problem
from petra_graph.measure.node_shapes import measure_shapes


class Halves(Reversible):
    """Reversible, and yet it returns other shapes."""

    def forward(self, x, t):
        return x[:, :3], t

    def inverse(self, y, s):
        return y, s


def test_a_reversible_block_whose_inverse_keeps_other_shapes(made, refused):
    assert refused(made(Halves), (8,)) == [
        Problem(
            message='node "mine": the inverse of block "mine" returns 3, 6',
            hint='it must return the input streams, 6, 6, in their order; or set kind = "buffered"',
            path=("graph", "node", 1),
        )
    ]


class Folds(Reversible):
    """Other shapes, from which the inverse returns to those of the inputs."""

    def forward(self, x, t):
        return torch.cat((x, t), 1), x[:, :0]

    def inverse(self, y, _):
        return y.tensor_split(2, 1)


def test_a_reversible_block_may_change_shapes(made):
    assert measure_shapes(made(Folds), (8,), torch.float32)["mine"].outputs == ((12,), (0,))


def test_the_same_block_as_a_buffered_node(made):
    assert measure_shapes(made(Halves, kind="buffered"), (8,), torch.float32)["mine"].outputs == ((3,), (6,))


class ReadsItem(Buffered):
    def forward(self, x, t):
        return (x * (x.sum().item() + 1), t)


class ReadsTruth(Buffered):
    def forward(self, x, t):
        return (x, t) if x.sum() == 0 else (t, x)


class ReadsIndices(Buffered):
    def forward(self, x, t):
        return (x, t[:, (t[0] >= 0).nonzero().flatten()])


class ReadsNumpy(Buffered):
    def forward(self, x, t):
        return (x + float(x.detach().numpy().sum()), t)


@pytest.mark.parametrize("block", [ReadsItem, ReadsTruth, ReadsIndices, ReadsNumpy])
def test_a_block_that_reads_values_runs_on_the_cpu(made, block):
    measured = measure_shapes(made(block), (8,), torch.float32)
    assert measured["mine"].outputs == ((6,), (6,))
    assert measured["head"].parameters == (12 + 1) * 5


class Raises(Buffered):
    def forward(self, x, t):
        message = "the moon is not full\nand other reasons"
        raise ValueError(message)


class RaisesOnValues(Buffered):
    def forward(self, x, t):
        x.sum().item()
        raise KeyError


@pytest.mark.parametrize(("block", "reason"), [(Raises, "the moon is not full"), (RaisesOnValues, "KeyError")])
def test_a_block_that_raises(made, block, reason, refused):
    line = inspect.getsourcelines(block)[1] + len(inspect.getsource(block).splitlines()) - 1
    assert refused(made(block), (8,)) == [
        Problem(
            message=f'node "mine": block "mine" raised in its forward: {reason}',
            hint=f"its input streams are 6, 6 (without the batch); it reads stem; raised at {__file__}:{line}",
            path=("graph", "node", 1),
        )
    ]


class ReturnsFloat64(Buffered):
    def forward(self, x, t):
        return (x.double(), t)


class ReadsFloat32(ReturnsFloat64):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.gru = nn.GRU(6, 6)  # its error would name the node that reads

    def forward(self, x, t):
        return super().forward(self.gru(x)[0], t)


def test_a_node_is_not_blamed_for_the_float64_of_another(made):
    """A run brings streams to one type: the kit names the block that returns another one."""
    measured = measure_shapes(made(ReadsFloat32, nodes=("first", "second")), (8,), torch.float32)
    assert measured["first"].dtypes == (torch.float32, torch.float32)


class Forgets(Buffered):
    def forward(self, x, t):
        return [x, t]


def test_a_block_that_returns_no_tuple(made, refused):
    (problem,) = refused(made(Forgets), (8,))
    assert problem.message == (
        'node "mine": block "mine" is wrong: it returned list; a block returns a tensor or a tuple of tensors'
    )


class Nothing(Buffered):
    def forward(self, x, t):
        return ()


class WithoutBatch(Buffered):
    def forward(self, x, t):
        return (x, t.mean())


class Merges(Buffered):
    def forward(self, x, t):
        return (x.reshape(-1, 3), t)


class Complex(Buffered):
    def forward(self, x, t):
        return (x, torch.complex(t, t))


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (Nothing, "it returned no stream"),
        (WithoutBatch, "it returned a stream [] for 2 samples; the batch is a stream's first dimension"),
        (Merges, "it returned a stream [4, 3] for 2 samples; the batch is a stream's first dimension"),
        (Complex, "it returned a stream of torch.complex64; streams are real: view them as pairs of numbers"),
    ],
)
def test_streams_that_no_channel_can_carry(made, block, reason, refused):
    (problem,) = refused(made(block), (8,))
    assert problem.message == f'node "mine": block "mine" is wrong: {reason}'


class ReadsWhileBuilt(Buffered):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.rates = [rate.item() for rate in torch.linspace(0, 1, 3)]
        self.layer = nn.Linear(6, 4)

    def forward(self, x, t):
        return self.layer(x), t


def test_a_block_whose_building_reads_values_is_built_on_the_cpu(made):
    before = torch.get_rng_state()
    measured = measure_shapes(made(ReadsWhileBuilt), (8,), torch.float32)["mine"]
    assert (measured.outputs, measured.parameters) == (((4,), (6,)), 7 * 4)
    assert torch.equal(torch.get_rng_state(), before)


class LooksUp(Buffered):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        {}["width"]

    def forward(self, x, t):
        return x, t


def test_an_exception_that_says_one_word_is_named(made, refused):
    (problem,) = refused(made(LooksUp), (8,))
    assert problem.message == 'node "mine": block "mine" cannot be built: KeyError: \'width\''


class NoFeatures(Buffered):
    def forward(self, x, t):
        return x.sum(1), t


def test_a_stream_without_features_is_explained_to_those_who_read_it(made, refused):
    (problem,) = refused(made(NoFeatures), (8,))
    assert problem.message == (
        'node "head": block "pool-linear" cannot be built: input stream 0 has no features: one number a sample, of shape [n]'
    )
    assert "it reads mine, which gives one number a sample, without features: let it return [n, 1]" in problem.hint
