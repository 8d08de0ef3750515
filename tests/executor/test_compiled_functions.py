"""Compiled blocks compute in training what they compute as written, and refuse what would not hold.

Torch's compiler traces them, and its backends for tests run what was traced: that needs no C++ compiler, and a fraction of the time.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

from petra_graph.blocks import AdditiveCoupling, Buffered, Reversible
from petra_graph.catalog.blocks import RevMlp
from petra_graph.errors import RunFailed
from petra_graph.executor.recorded import compile_functions
from tests.support.pipelines import (
    CHAIN,
    CLASSES,
    REVNET,
    SKIP,
    Batch,
    Batched,
    batches,
    node,
    pipeline,
    relative_error,
)

IMAGE = (3, 6, 6)


@pytest.fixture
def backend(monkeypatch):
    """Compile with another backend than Inductor, and forget afterwards what was compiled."""
    from torch._dynamo.testing import CompileCounter

    compiler = torch.compile

    def use(chosen=None):
        chosen = chosen or CompileCounter()
        monkeypatch.setattr(torch, "compile", partial(compiler, backend=chosen))
        return chosen

    torch.compiler.reset()
    yield use
    torch.compiler.reset()


def trained(compiled: bool, data: list[Batch], nodes=CHAIN, shape=(8,), **settings):
    built = pipeline(nodes, shape, compiled=compiled, batch=4, **settings)
    built.train(data)
    return built.parameters()


@pytest.mark.parametrize("method", ["petra", "pipedream"])
def test_every_method_trains_as_it_does_with_blocks_as_written(backend, method):
    """Along skip edges, too, and, with stored weights, blocks with running statistics."""
    backend("aot_eager")
    nodes, shape = ((*REVNET[:2], REVNET[-1]), IMAGE) if method == "pipedream" else (SKIP, (8,))
    data = batches(shape, 4)
    compiled, written = (trained(how, data, nodes, shape, method=method) for how in (True, False))
    assert relative_error(compiled, written) < 1e-10


def test_an_evaluation_has_the_bits_of_blocks_as_written(backend):
    counter = backend()
    built, plain = (pipeline(REVNET, IMAGE, compiled=compiled, batch=4) for compiled in (True, False))
    found, expected = (list(one.runtime.evaluate(Batched(batches(IMAGE, 2)))) for one in (built, plain))
    assert counter.frame_count == 0
    assert [result.loss.item() for result in found] == [result.loss.item() for result in expected]


def test_more_shapes_than_the_compiler_keeps_by_itself(backend):
    """One code object serves all blocks of a class: the ninth shape would run uncompiled, or not, by what else a process hosts."""
    counter = backend()
    widths = range(2, 13)
    for width in widths:
        block = RevMlp([(width,)] * 2, hidden=3)
        compile_functions("a", block)
        block(*torch.randn(2, 4, width))
    assert counter.frame_count == len(widths)


def test_blocks_of_one_shape_share_the_code(backend):
    counter = backend()
    built = pipeline(CHAIN, (8,), compiled=True, batch=4)
    built.train(batches((8,), 2))
    shapes, of_each = len({"stem", "rev", "head"}), 2  # without a graph, with one; the head has no pass without
    assert counter.frame_count == shapes * of_each - 1
    built.train(batches((8,), 3), start=2)
    assert counter.frame_count == shapes * of_each - 1


def test_random_numbers_are_refused(backend):
    backend("eager")
    nodes = (CHAIN[0], node("rev", "rev-mlp", hidden=7, dropout=0.5), node("head", "pool-linear", outputs=CLASSES))
    with pytest.raises(RunFailed, match='node "rev" cannot be compiled: it draws random numbers'):
        pipeline(nodes, (8,), compiled=True, batch=4).train(batches((8,), 1))


class Doubled(Reversible):
    def forward(self, x):
        return x * 2

    def inverse(self, y):
        return y / 2


class Scaled(AdditiveCoupling):
    functions = ("residual", "factor")

    def factor(self):
        return 2

    def residual(self, x):
        return x * self.factor()


class Plain(Buffered):
    def forward(self, x):
        return x + 1


@pytest.mark.parametrize(
    ("block", "compiled"),
    [
        (Doubled, {"forward", "inverse"}),
        (Scaled, {"residual", "factor"}),
        (Plain, {"forward"}),
    ],
)
def test_what_is_compiled_of_a_block(backend, block, compiled):
    backend("eager")
    made = block([(2,), (2,)])
    compile_functions("a", made)
    assert {name for name in ("forward", "inverse", "residual", "factor") if name in vars(made)} == compiled
