"""Encoded tensors: their errors, their bytes, and infinities."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.executor.encoded import LEVELS, EncodedTensor, decode, encode, payload
from tests.support.costs import encoded_bytes

STORED = ("bfloat16", "int8")
OWN = (torch.float32, torch.float64)
NAN, INF = math.nan, math.inf
DIVISIONS = 4 * LEVELS
"""The quotient and the product, of up to LEVELS steps, round too."""


def one(stream: torch.Tensor, stored: str) -> EncodedTensor:
    (value,) = encode((stream,), stored)
    assert isinstance(value, EncodedTensor)
    return value


def back(stream: torch.Tensor, stored: str) -> torch.Tensor:
    (value,) = decode(encode((stream,), stored))
    return value


@st.composite
def tensors(draw, dtype=None):
    """Of any size, over many magnitudes, now and then with zeros, subnormals and one magnitude alone."""
    own = draw(st.sampled_from(OWN)) if dtype is None else dtype
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    largest = torch.tensor(2.0 ** draw(st.integers(-130, 120)), dtype=own).item()
    elements = st.floats(-largest, largest, width=32 if own == torch.float32 else 64)
    count = math.prod(shape)
    values = draw(st.lists(elements, min_size=count, max_size=count))
    return torch.tensor(values, dtype=own).reshape(shape)


@given(tensors())
def test_int8_is_half_a_scale_off_at_most_and_uses_its_whole_range(x):
    value = one(x, "int8")
    off = (back(x, "int8").double() - x.double()).abs()
    assert bool((off <= value.scale.double() * (0.5 + DIVISIONS * torch.finfo(x.dtype).eps)).all())
    if x.numel() and float(x.abs().max()) / LEVELS >= torch.finfo(torch.float32).tiny:
        assert int(value.payload.abs().max()) == LEVELS
    assert int(value.payload.min() if x.numel() else 0) >= -LEVELS


@given(tensors(), st.sampled_from(STORED))
def test_type_shape_and_bytes_are_those_that_were_planned(x, stored):
    (value,) = encode((x,), stored)
    found = decode((value,))[0]
    assert (found.dtype, found.shape) == (x.dtype, x.shape)
    held = [payload(value), *([] if value.scale is None else [value.scale])]
    own = str(x.dtype).removeprefix("torch.")
    assert sum(one.untyped_storage().nbytes() for one in held) == encoded_bytes(x.shape, stored, own)


@given(tensors(), st.sampled_from(STORED), st.sampled_from([NAN, INF, -INF]), st.randoms(use_true_random=False))
def test_what_is_not_finite_does_not_become_finite(x, stored, broken, random):
    if not x.numel():
        return
    x.view(-1)[random.randrange(x.numel())] = broken
    found = back(x, stored)
    assert bool((~found.isfinite())[~x.isfinite()].all())
    if stored == "int8":
        assert bool(one(x, stored).scale.isnan())
        assert bool(found.isnan().all())


@pytest.mark.parametrize("stored", ["as-streams", *STORED])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_integers_are_left_alone(dtype, stored):
    x = torch.ones(4, dtype=dtype)
    assert encode((x,), stored)[0] is x
    assert decode((x,))[0] is x


@pytest.mark.parametrize("stored", STORED)
def test_memory_formats_are_kept(stored):
    x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    assert one(x, stored).payload.stride() == back(x, stored).stride() == x.stride()
