"""Streams on a grid: reconstruction is exact to the bit, at any depth, whatever F is computed in."""

from __future__ import annotations

import pytest
import torch

from petra_graph.blocks import Reversible
from petra_graph.blocks.grid import grid, grid_limit, on_grid, rounded
from petra_graph.errors import RunFailed, SpecError
from petra_graph.kinds.block import BlockDeclaration
from tests.support.pipelines import BLOCKS, CLASSES, batches, node, pipeline

DEPTH = 16


def deep(depth: int = DEPTH):
    return (
        node("stem", "conv-stem", channels=6),
        *(node(f"rev{index}", "rev-basic", dropout=0.1) for index in range(depth)),
        node("head", "pool-linear", outputs=CLASSES),
    )


def reconstruction_errors(built, data):
    """The largest difference, over nodes and micro-batches, between what went in and what came back."""
    sent, worst = {}, 0.0
    for executor in built.executors:
        for segment, runner in executor.runners:
            if segment.kind != "reversible":
                continue
            forward, backward = runner.forward, runner.backward

            def watched_forward(m, inputs, forward=forward, name=segment.nodes[0]):
                sent[name, m] = [stream.clone() for stream in inputs]
                return forward(m, inputs)

            def watched_backward(m, outputs, gradients, backward=backward, name=segment.nodes[0]):
                nonlocal worst
                found = backward(m, outputs, gradients)
                for stream, expected in zip(found.inputs, sent.pop((name, m)), strict=True):
                    worst = max(worst, float((stream - expected).abs().max()))
                return found

            runner.forward, runner.backward = watched_forward, watched_backward
    built.train(data)
    assert not sent
    return worst


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compute", "schedule", "grid_bits"),
    [
        ("float32", "sequential", 12),
        pytest.param("bfloat16", "sequential", 16, marks=pytest.mark.thorough),
        pytest.param("float32", "1f1b", 16, marks=pytest.mark.thorough),
        ("bfloat16", "1f1b", 12),
    ],
)
def test_reconstruction_is_exact_to_the_bit(compute, schedule, grid_bits):
    """Under a delay, with the learning rate at zero: what parameters do in between is not the grid's business."""
    built = pipeline(
        deep(),
        (3, 6, 6),
        schedule=schedule,
        compute=compute,
        precision={"streams": "grid", "grid_bits": grid_bits},
        rate=lambda _: 0.0,
    )
    assert reconstruction_errors(built, batches((3, 6, 6), 3 if schedule == "sequential" else 24)) == 0.0


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_without_a_grid_it_is_not(compute):
    built = pipeline(deep(2 * DEPTH), (3, 6, 6), schedule="sequential", compute=compute, rate=lambda _: 0.0)
    assert reconstruction_errors(built, batches((3, 6, 6), 3)) > 0.0


def test_reversible_backpropagation_then_equals_plain_backpropagation_to_the_bit():
    """Both differentiate the same numbers: not only close, equal."""
    data = batches((3, 6, 6), 12)
    one, other = (
        pipeline(deep(4), (3, 6, 6), method=method, compute="float32", precision={"streams": "grid"}, accumulation=2)
        for method in ("reversible-backprop", "backprop")
    )
    for built in (one, other):
        built.train(data)
    expected = other.parameters()
    assert all(torch.equal(value, expected[key]) for key, value in one.parameters().items())


def test_leaving_the_grids_range_is_reported():
    built = pipeline(deep(2), (3, 6, 6), compute="float32", precision={"streams": "grid", "grid_bits": 22})
    with pytest.raises(RunFailed, match=r'node "rev\d|node "stem"') as caught:
        built.train(batches((3, 6, 6), 2))
    assert "sums on the grid are exact below 4" in str(caught.value)
    assert "lower precision.grid_bits (22)" in str(caught.value)


def test_the_range_is_where_float32_still_tells_neighbours_apart():
    limit = grid_limit(torch.float32, 16)
    assert limit == 2**8
    step = 2.0**-16
    below, at = torch.tensor(limit - step), torch.tensor(limit)
    assert (below + step) - step == below
    assert (at * 2 + step) - at * 2 != step


def test_the_gradient_passes_the_rounding():
    x = torch.linspace(-1, 1, 7, requires_grad=True)
    y = rounded(x, 2)
    assert y.tolist() == [-1.0, -0.75, -0.25, 0.0, 0.25, 0.75, 1.0]
    y.backward(torch.arange(7.0))
    assert x.grad.tolist() == list(range(7))


def test_a_value_of_another_type_is_rounded_in_the_streams():
    stream, value = torch.zeros(1), torch.tensor([0.3], dtype=torch.bfloat16)
    assert on_grid(value, stream) is value
    with grid(8):
        assert on_grid(value, stream).dtype == torch.float32
        assert float(on_grid(value, stream) * 2**8).is_integer()


class Scale(Reversible):
    """Invertible, but by a product."""

    streams = 2

    def forward(self, x, t):
        return 2 * x, t

    def inverse(self, y, s):
        return y / 2, s


def test_a_block_that_does_more_than_add_is_refused(monkeypatch):
    declaration = BlockDeclaration(summary="Scale.", build=f"{__name__}:Scale", kind="reversible", streams=2)
    monkeypatch.setitem(BLOCKS, "scale", declaration)
    nodes = (*deep(0)[:1], node("scale", "scale"), *deep(0)[1:])
    with pytest.raises(SpecError, match='node "scale": block "scale" does more than add to its streams'):
        pipeline(nodes, (3, 6, 6), compute="float32", precision={"streams": "grid"})
    pipeline(nodes, (3, 6, 6), compute="float32")
