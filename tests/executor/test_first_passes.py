"""The first passes of a node, observed for what would make its recomputation another function."""

from __future__ import annotations

import random
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from petra_graph.blocks import AdditiveCoupling, Buffered, Head, NoOptions
from petra_graph.errors import RunFailed
from petra_graph.executor.first_passes import PASSES, FirstPasses
from petra_graph.executor.head import HeadRunner
from petra_graph.executor.numerics import NumericsContext
from petra_graph.executor.runners import Recompute, Reconstruct, StashGraph
from petra_graph.spec.model import PrecisionSpec

STREAM = (6,)


def numerics(**more) -> NumericsContext:
    context = {"device": torch.device("cpu"), "precision": PrecisionSpec(compute="float64"), "seed": 0}
    return NumericsContext(**context, first_passes=FirstPasses(**more))


class Coupled(AdditiveCoupling):
    """A coupling whose residual function a test gives."""

    def __init__(self, function=torch.tanh, **parts) -> None:
        super().__init__((STREAM, STREAM), NoOptions())
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def residual(self, x):
        return self.function(x)


class Stem(Buffered):
    def __init__(self, function) -> None:
        super().__init__((STREAM,), NoOptions())
        self.function = function

    def forward(self, x):
        return (self.function(x),)


def step(block, runner=Reconstruct, micro_batches=PASSES, **more) -> None:
    """Train some micro-batches."""
    made = runner({"mine": block.double()}, numerics(**more), reads_samples=False)
    for m in range(micro_batches):
        inputs = tuple(torch.ones(2, *STREAM, dtype=torch.float64) for _ in block.inputs)
        outputs = made.forward(m, inputs)
        made.backward(m, outputs, tuple(map(torch.ones_like, outputs)))


DRAWS = {
    "Python's `random`": lambda x: x * (random.random() > 0.5),
    "numpy's global generator": lambda x: x * np.random.rand(),  # noqa: NPY002  what is to be found
}


@pytest.mark.parametrize("source", DRAWS)
@pytest.mark.parametrize("runner", [Reconstruct, Recompute])
def test_random_numbers_that_no_key_fixes(runner, source):
    """A drop-path that asks `random` drops another path in the reconstruction, and nothing said so."""
    block = Coupled(DRAWS[source]) if runner is Reconstruct else Stem(DRAWS[source])
    with pytest.raises(RunFailed) as error:
        step(block, runner)
    (problem,) = error.value.problems
    assert problem.message == f'node "mine" draws random numbers from {source}'
    assert "have a seed of their own" in problem.hint


def test_a_head_and_a_loss_that_draw():
    class Drawing(Head):
        def forward(self, x):
            return (x * random.random(),)

    class Loss:
        def __call__(self, output, target):
            return output.sum() * random.random()

        def metrics(self, output, target):
            return {}

    class Plain(Loss):
        def __call__(self, output, target):
            return output.sum()

    class Still(Head):
        def forward(self, x):
            return (x * 1,)

    for head, loss, named in ((Drawing, Plain, 'node "head"'), (Still, Loss, 'node "the loss behind head"')):
        runner = HeadRunner({"head": head((STREAM,), NoOptions())}, numerics(), reads_samples=False, loss=loss())

        def train(runner=runner):
            for m in range(PASSES):
                runner.forward_backward(m, (torch.ones(2, *STREAM),), torch.zeros(2))

        with pytest.raises(RunFailed, match=named):
            train()


def test_a_generator_that_another_thread_moves_once_is_no_fault_of_the_node():
    draws = iter([1, 0, 0, 0])
    step(Coupled(lambda x: torch.tanh(x) + 0 * (random.random() if next(draws) else 0)))


def test_torchs_generators_are_keyed():
    step(Coupled(lambda x: nn.functional.dropout(x, 0.5)))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return torch.tanh(x)


class Average(nn.Module):
    """An average of what it has seen, as codebooks keep it."""

    def __init__(self, *, minds_the_switch: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(STREAM))
        self.register_buffer("replaced", torch.zeros(STREAM))
        if minds_the_switch:
            self.track_running_stats = True

    def forward(self, x):
        if self.training and getattr(self, "track_running_stats", True):
            self.mean.lerp_(x.detach().mean(0), 0.1)
            self.replaced = self.replaced + 1
        return torch.tanh(x)


@pytest.mark.parametrize("runner", [Reconstruct, Recompute])
@pytest.mark.parametrize(
    ("part", "named"),
    [
        (
            lambda: spectral_norm(nn.Linear(6, 6)),
            ["part.parametrizations.weight.0._u", "part.parametrizations.weight.0._v"],
        ),
        (lambda: Average(minds_the_switch=False), ["part.mean", "part.replaced"]),
        (Counting, ["part.calls"]),
    ],
)
def test_state_that_both_passes_would_advance(part, named, runner):
    """Spectral normalisation of a block that never saw the kit drifted by two power iterations a micro-batch, silently."""
    block = Coupled(part=part())
    block.function = block.part
    if runner is Recompute:
        block = Buffered_of(block)
        named = [f"inner.{name}" for name in named]
    listed = ", ".join(f'"{name}"' for name in named)
    with pytest.raises(RunFailed) as error:
        step(block, runner)
    (problem,) = error.value.problems
    assert problem.message == f'node "mine" changes {listed} in a forward whose running statistics are frozen'
    assert "track_running_stats" in problem.hint


class Lazily(Coupled):
    """Makes what it needs at its first use: a property, a number set, a plain tensor."""

    size = 0

    @cached_property
    def scale(self):
        return 0.5

    def residual(self, x):
        self.size = x.shape[1]
        if not hasattr(self, "table"):
            self.table = torch.ones(self.size, dtype=x.dtype)
        return torch.tanh(x) * self.scale * self.table


def test_a_constant_that_is_made_at_the_first_use_is_no_state():
    """`functools.cached_property` passed the kit and the dry run, and failed the run."""
    step(Lazily())


class Tokens(Buffered):
    def __init__(self):
        super().__init__((STREAM,), NoOptions())
        self.table = nn.Embedding(4, 2, max_norm=0.1)

    def forward(self, x):
        return (self.table(x.long()),)


def test_a_parameter_that_a_forward_writes_to():
    """The message spoke of running statistics."""
    with pytest.raises(RunFailed) as error:
        step(Tokens(), Recompute)
    (problem,) = error.value.problems
    assert problem.message.startswith('node "mine" changes the parameter "table.weight" in a forward')
    assert "max_norm" in problem.hint


class MakesABuffer(Coupled):
    def residual(self, x):
        if not hasattr(self, "table"):
            self.register_buffer("table", torch.ones(6, dtype=x.dtype))
        return torch.tanh(x) * self.table


def test_a_buffer_that_is_made_in_a_forward_is_in_no_checkpoint_of_others():
    with pytest.raises(RunFailed, match='makes the buffer "table" in a forward'):
        step(MakesABuffer())


class Buffered_of(Buffered):
    def __init__(self, inner) -> None:
        super().__init__(inner.inputs, NoOptions())
        self.inner = inner

    def forward(self, *streams):
        return self.inner(*streams)


def test_statistics_that_mind_the_switch_may_change():
    block = Coupled(part=Average(minds_the_switch=True), norm=nn.BatchNorm1d(6))
    block.function = lambda x: block.part(block.norm(x))
    step(block)
    assert int(block.norm.num_batches_tracked) == PASSES


def test_a_graph_that_is_kept_runs_a_node_once_so_its_state_may_advance():
    block = Buffered_of(Coupled(part=spectral_norm(nn.Linear(6, 6))))
    block.inner.function = block.inner.part
    step(block, StashGraph)


def test_later_passes_are_not_observed(monkeypatch):
    """In the steady state, nothing is looked up or compared."""
    made = Reconstruct({"mine": Coupled().double()}, numerics(), reads_samples=False)
    streams = (torch.ones(2, *STREAM, dtype=torch.float64),) * 2

    def micro_batch(m):
        made.backward(m, made.forward(m, streams), streams)

    for m in range(PASSES):
        micro_batch(m)

    def refused(*_):
        raise AssertionError("observed")

    monkeypatch.setattr(random, "getstate", refused)
    monkeypatch.setattr(nn.Module, "named_modules", refused)
    monkeypatch.setattr("petra_graph.executor.runners.frozen_statistics", _nothing)
    micro_batch(PASSES)


@contextmanager
def _nothing(*_):
    yield
