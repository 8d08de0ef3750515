"""Segment runners: what lives between the two passes, what both draw, what has no gradient, and weights that an optimizer gives."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from petra_graph.blocks import Buffered
from petra_graph.executor.delayed_weights import copied_parameters
from petra_graph.executor.numerics import NumericsContext
from petra_graph.executor.runners import Recompute, StashGraph
from petra_graph.program.schedule import WeightVersions
from petra_graph.spec.model import PrecisionSpec
from tests.support.pipelines import CLASSES, REVNET, batches, node, pipeline

DROPOUT = (
    node("stem", "linear-stem", features=6),
    node("rev0", "rev-mlp", hidden=32, dropout=0.5),
    node("rev1", "rev-mlp", hidden=32, dropout=0.5, kind="buffered"),
    node("head", "pool-linear", outputs=CLASSES),
)
NUMERICS = NumericsContext(device=torch.device("cpu"), precision=PrecisionSpec(compute="float64"), seed=0)


def runner_of(nodes, name, shape=(8,)):
    built = pipeline(nodes, shape, schedule="sequential")
    return next(runner for one in built.executors for segment, runner in one.runners if segment.nodes[0] == name)


def streams(*shape: int, count: int = 2) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(*shape, generator=generator, dtype=torch.float64) for _ in range(count))


@pytest.mark.parametrize("method", ["petra", "backprop", "delayed-reconstructed"])
def test_running_statistics_count_every_micro_batch_once(method):
    """Forwards without a graph, recomputations and inverses among them."""
    built = pipeline(REVNET, (3, 6, 6), method=method)
    built.train(batches((3, 6, 6), 7))
    counts = [int(value) for key, value in built.parameters().items() if key.endswith("num_batches_tracked")]
    assert counts == [7] * (1 + 3 * 2 + 3)


@pytest.mark.parametrize("name", ["rev0", "rev1"])
def test_both_passes_draw_the_same_dropout(name):
    """With another mask in the backward, a reversible node would reconstruct another input."""
    runner, inputs, gradients = runner_of(DROPOUT, name), streams(4, 6), streams(4, 6)
    outputs = runner.forward(3, inputs)
    leaves = tuple(stream.clone().requires_grad_() for stream in inputs)
    again = runner.run(3, leaves)
    assert all(map(torch.equal, outputs, again))
    expected = torch.autograd.grad(again, leaves, gradients)
    found = runner.backward(3, outputs, gradients)
    for one, other in zip((*found.inputs, *found.gradients), (*inputs, *expected), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert not torch.equal(runner.forward(4, inputs)[0], outputs[0])


class PartlyFrozen(Buffered):
    """A linear layer beside a frozen one, and an integer parameter, as quantised layers have."""

    def __init__(self) -> None:
        super().__init__(((6,),))
        self.trained, self.frozen = nn.Linear(6, 6), nn.Linear(6, 6).requires_grad_(False)
        self.levels = nn.Parameter(torch.tensor([2]), requires_grad=False)

    def forward(self, x):
        return (self.frozen(self.trained(x)) * self.levels,)


@pytest.mark.parametrize("runner_type", [Recompute, StashGraph])
def test_a_stored_version_has_no_gradient_of_what_is_frozen(runner_type):
    """It crashed on integer parameters."""
    mine = PartlyFrozen().double()
    versions = WeightVersions(partial(copied_parameters, {"mine": mine}))
    runner = runner_type({"mine": mine}, NUMERICS, reads_samples=False, versions=versions)
    (x,), (gradient,) = streams(4, 6, count=1), streams(4, 6, count=1)
    versions.begin(0)
    runner.forward(0, (x,))
    versions.before_step()
    read = x.clone().requires_grad_()
    expected, of_weight = torch.autograd.grad(mine(read)[0], (read, mine.trained.weight), gradient)
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(tuple(mine.parameters())):
        mine.trained.weight.zero_()  # the update, which the stored version does not see
    (found,) = runner.backward(0, None, (gradient,)).gradients
    assert not mine.trained.weight.any()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(mine.trained.weight.grad, of_weight, rtol=1e-12, atol=1e-12)
    assert all(one.grad is None for one in (mine.frozen.weight, mine.levels))


@pytest.mark.parametrize("runner_type", [Recompute, StashGraph])
def test_samples_get_no_gradient(runner_type):
    """The stem of a network on float samples computed a gradient that nothing reads: as much as its forward."""
    found = {}
    for reads_samples in (False, True):
        modules = runner_of(REVNET, "stem", (3, 6, 6)).modules
        runner = runner_type(modules, NUMERICS, reads_samples=reads_samples)
        outputs = runner.forward(0, streams(4, 3, 6, 6, count=1))
        with FlopCounterMode(display=False) as counter:
            gradients = runner.backward(0, None, tuple(map(torch.ones_like, outputs))).gradients
        weights = [parameter.grad for parameter in modules["stem"].parameters()]
        found[reads_samples] = gradients, counter.get_total_flops(), weights
    assert [stream.numel() for stream in found[True][0]] == [0]
    assert found[True][1] < found[False][1]
    assert all(map(torch.equal, found[True][2], found[False][2]))
