"""On processors without AVX-512, oneDNN wrote past a workspace of narrow convolutions: five workers of these tests ended, or gradients were wrong."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from petra_graph.blocks import AdditiveCoupling
from petra_graph.executor.numerics import NumericsContext, place
from petra_graph.spec.model import PrecisionSpec

CHANNELS, SIDE = 4, 8


class Coupled(AdditiveCoupling):
    """Two convolutions that are hit, and two that are not."""

    def __init__(self):
        super().__init__(((CHANNELS, SIDE, SIDE),) * 2)
        self.narrow = nn.Sequential(
            nn.Conv2d(CHANNELS, 6, 1, stride=2),
            nn.Conv2d(6, 3, 1, stride=(1, 2), padding="valid"),
            nn.Conv2d(3, 8, 1, stride=1),
            nn.Conv2d(8, CHANNELS, 1, stride=2),
            nn.Upsample(SIDE),
        )

    def residual(self, x):
        return self.narrow(x)


def placed(layout="channels-last"):
    numerics = NumericsContext(device=torch.device("cpu"), precision=PrecisionSpec(memory_format=layout), seed=0)
    return place(Coupled(), numerics), numerics


def gradients(layout, threads):
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    block, numerics = placed(layout)
    streams = numerics.canonicalize([torch.randn(8, CHANNELS, SIDE, SIDE) for _ in range(2)])
    reverse = block.reverse_vjp(block(*streams), streams)
    return [*reverse.inputs, *reverse.gradients, *(one.grad for one in block.parameters())]


def compare():
    for threads in (1, 2) * 3:
        for found, expected in zip(gradients("channels-last", threads), gradients("contiguous", threads), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.processes
def test_gradients_are_those_of_contiguous_streams():
    """Under the checks of glibc's allocator, which find what is written past a workspace."""
    checked = {"LD_PRELOAD": "libc_malloc_debug.so.0", "MALLOC_CHECK_": "3", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    command = [sys.executable, "-c", "from tests.executor.test_place_block import compare; compare()"]
    done = subprocess.run(command, env={**os.environ, **checked}, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("limit", ["", "AVX512_CORE", "AVX2", "avx2_vnni", "SSE41", "AVX"])
def test_nothing_changes_where_avx512_is_in_use(limit, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: True)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    strides = [one.stride for one in placed()[0].narrow[:4]]
    as_they_are = limit in {"", "AVX512_CORE"}
    assert strides == [(2, 2) if as_they_are else (1, 1), (1, 2) if as_they_are else (1, 1), (1, 1), (2, 2)]
