"""On processors without AVX-512, oneDNN wrote past a workspace: five workers of these tests ended, or gradients were wrong."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from petra_graph.blocks import AdditiveCoupling, Buffered
from petra_graph.executor.numerics import NumericsContext, place
from petra_graph.spec.model import PrecisionSpec

CHANNELS, SIDE = 4, 8


def narrow():
    """Return two convolutions that are hit, and two that are not."""
    return nn.Sequential(
        nn.Conv2d(CHANNELS, 6, 1, stride=2),
        nn.Conv2d(6, 3, 1, stride=(1, 2), padding="valid"),
        nn.Conv2d(3, 8, 1, stride=1),
        nn.Conv2d(8, CHANNELS, 1, stride=2),
        nn.Upsample(SIDE),
    )


class Down(Buffered):
    def __init__(self):
        super().__init__(((CHANNELS, SIDE, SIDE),))
        self.narrow = narrow()

    def forward(self, x):
        return self.narrow(x)


class Coupled(AdditiveCoupling):
    def __init__(self):
        super().__init__(((CHANNELS, SIDE, SIDE),) * 2)
        self.narrow = narrow()

    def residual(self, x):
        return self.narrow(x)


def gradients(block, layout, threads):
    """Return all gradients in float32, on as many threads."""
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    numerics = NumericsContext(device=torch.device("cpu"), precision=PrecisionSpec(memory_format=layout), seed=0)
    placed, shape = place(block(), numerics), (8, CHANNELS, SIDE, SIDE)
    streams = numerics.canonicalize([torch.randn(shape) for _ in range(1 if block is Down else 2)])
    if block is Coupled:
        reverse = placed.reverse_vjp(placed(*streams), streams)
        return [*reverse.inputs, *reverse.gradients, *(one.grad for one in placed.parameters())]
    placed.narrow(*streams).square().sum().backward()
    return [one.grad for one in placed.parameters()]


def compare():
    for block in (Down, Coupled):
        for threads in (1, 2):
            for _ in range(3):
                found, expected = (gradients(block, layout, threads) for layout in ("channels-last", "contiguous"))
                for one, other in zip(found, expected, strict=True):
                    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.processes
def test_gradients_are_those_of_contiguous_streams():
    """Under the checks of glibc's allocator, which find what is written past a workspace."""
    checked = {"LD_PRELOAD": "libc_malloc_debug.so.0", "MALLOC_CHECK_": "3", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    code = "from tests.executor.test_place_block import compare; compare()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **checked}, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("limit", ["", "AVX512_CORE", "AVX2", "avx2_vnni", "SSE41", "AVX"])
def test_nothing_changes_where_avx512_is_in_use(limit, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: True)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    placed = place(Down(), NumericsContext(device=torch.device("cpu"), precision=PrecisionSpec(), seed=0))
    strides = [one.stride for one in placed.narrow[:4]]
    as_they_are = limit in {"", "AVX512_CORE"}
    assert strides == [(2, 2) if as_they_are else (1, 1), (1, 2) if as_they_are else (1, 1), (1, 1), (2, 2)]
