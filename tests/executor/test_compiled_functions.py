"""Compiled blocks compute in training what they compute as written, and refuse what would not hold.

Torch's compiler traces them, and its backends for tests run what was traced: that needs no C++ compiler, and a fraction of the time.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

from petra_graph.catalog.blocks import RevMlp
from petra_graph.errors import RunFailed
from petra_graph.executor.recorded import compile_functions
from tests.support.pipelines import (
    CHAIN,
    CLASSES,
    REVNET,
    SKIP,
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


def trained(compiled, nodes, shape, **settings):
    built = pipeline(nodes, shape, compiled=compiled, batch=4, **settings)
    built.train(batches(shape, 4))
    return built.parameters()


def test_with_stored_weights_and_running_statistics_it_trains_as_it_does_with_blocks_as_written(backend):
    backend("aot_eager")
    found, expected = (trained(one, (*REVNET[:2], REVNET[-1]), IMAGE, method="pipedream") for one in (True, False))
    assert relative_error(found, expected) < 1e-10


def test_more_shapes_than_the_compiler_keeps_by_itself(backend):
    """One code object serves all blocks of a class: the ninth shape would run uncompiled, or not, by what else a process hosts."""
    counter = backend()
    widths = range(2, 13)
    for width in widths:
        block = RevMlp([(width,)] * 2, hidden=3)
        compile_functions("a", block)
        block(*torch.randn(2, 4, width))
    assert counter.frame_count == len(widths)


def test_blocks_of_one_shape_share_the_code_also_along_skip_edges(backend):
    counter = backend()
    assert relative_error(trained(True, SKIP, (8,)), trained(False, SKIP, (8,))) < 1e-10
    shapes, of_each = len({"stem", "rev", "join", "head"}), 2  # without a graph, with one; the head has no pass without
    assert counter.frame_count == shapes * of_each - 1
    trained(True, SKIP, (8,))
    assert counter.frame_count == shapes * of_each - 1


def test_random_numbers_are_refused(backend):
    backend("eager")
    nodes = (CHAIN[0], node("rev", "rev-mlp", hidden=7, dropout=0.5), node("head", "pool-linear", outputs=CLASSES))
    with pytest.raises(RunFailed, match='node "rev" cannot be compiled: it draws random numbers'):
        pipeline(nodes, (8,), compiled=True, batch=4).train(batches((8,), 1))
