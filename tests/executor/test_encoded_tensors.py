"""Encoded tensors: their errors, their bytes, and infinities."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.executor.encoded import LEVELS, EncodedTensor, decode, encode

STORED = ("bfloat16", "int8")
DIVISIONS = 4 * LEVELS
"""The quotient and the product, of up to LEVELS steps, round too."""


def there_and_back(stream: torch.Tensor, stored: str) -> tuple[EncodedTensor, torch.Tensor]:
    (value,) = encode((stream,), stored)
    return value, decode((value,))[0]


@st.composite
def tensors(draw):
    """Of any size, over many magnitudes, now and then with zeros, subnormals and one magnitude alone."""
    own = draw(st.sampled_from([torch.float32, torch.float64]))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    largest = torch.tensor(2.0 ** draw(st.integers(-130, 120)), dtype=own).item()
    elements = st.floats(-largest, largest, width=32 if own == torch.float32 else 64)
    count = math.prod(shape)
    values = draw(st.lists(elements, min_size=count, max_size=count))
    return torch.tensor(values, dtype=own).reshape(shape)


@given(tensors())
def test_int8_is_half_a_scale_off_at_most_and_uses_its_whole_range(x):
    value, back = there_and_back(x, "int8")
    off = (back.double() - x.double()).abs()
    assert bool((off <= value.scale.double() * (0.5 + DIVISIONS * torch.finfo(x.dtype).eps)).all())
    if x.numel() and float(x.abs().max()) / LEVELS >= torch.finfo(torch.float32).tiny:
        assert int(value.payload.abs().max()) == LEVELS
    assert int(value.payload.min() if x.numel() else 0) >= -LEVELS


@given(tensors().filter(torch.Tensor.numel), st.sampled_from(STORED), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_what_is_not_finite_does_not_become_finite(x, stored, broken):
    x.view(-1)[-1] = broken
    value, back = there_and_back(x, stored)
    assert bool((~back.isfinite())[~x.isfinite()].all())
    if stored == "int8":
        assert bool(value.scale.isnan())
        assert bool(back.isnan().all())


@pytest.mark.parametrize("stored", ["as-streams", *STORED])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_integers_are_left_alone(dtype, stored):
    x = torch.ones(4, dtype=dtype)
    assert encode((x,), stored)[0] is decode((x,))[0] is x
