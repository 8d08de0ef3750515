"""Encoded tensors: their errors, their bytes, and infinities."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.executor.encoded_tensors import LEVELS, EncodedTensor, copied, decode, encode, payload, total
from tests.support.costs import encoded_bytes

STORED = ("float32", "bfloat16", "float16", "int8")
OWN = (torch.float32, torch.float64)
NAN, INF = math.nan, math.inf
DIVISIONS = 4 * LEVELS
"""The quotient and the product, of up to LEVELS steps, round too."""


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def one(stream: torch.Tensor, stored: str) -> EncodedTensor:
    (value,) = encode((stream,), stored)
    assert isinstance(value, EncodedTensor)
    return value


def bytes_of(value: torch.Tensor | EncodedTensor) -> int:
    held = [payload(value), *([value.scale] if getattr(value, "scale", None) is not None else ())]
    return sum(tensor.untyped_storage().nbytes() for tensor in held)


def back(stream: torch.Tensor, stored: str) -> torch.Tensor:
    (value,) = decode(encode((stream,), stored))
    return value


def compressed_cases():
    return [(own, stored) for own in OWN for stored in STORED if (own, stored) != (torch.float32, "float32")]


@st.composite
def tensors(draw, dtype=None):
    """Of any size, over many magnitudes, now and then with zeros, subnormals and one magnitude alone."""
    own = draw(st.sampled_from(OWN)) if dtype is None else dtype
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    bits = 32 if own == torch.float32 else 64
    largest = 2.0 ** draw(st.integers(-130, 120))
    largest = torch.tensor(largest, dtype=own).item()
    elements = st.floats(-largest, largest, width=bits)
    count = math.prod(shape)
    values = draw(st.lists(elements, min_size=count, max_size=count))
    return torch.tensor(values, dtype=own).reshape(shape)


@given(tensors())
def test_int8_is_half_a_scale_off_at_most(x):
    value = one(x, "int8")
    off = (back(x, "int8").double() - x.double()).abs()
    assert bool((off <= value.scale.double() * (0.5 + DIVISIONS * torch.finfo(x.dtype).eps)).all())


@given(tensors())
def test_int8_uses_its_whole_range(x):
    value = one(x, "int8")
    if x.numel() and float(x.abs().max()) / LEVELS >= torch.finfo(torch.float32).tiny:
        assert int(value.payload.abs().max()) == LEVELS
    assert int(value.payload.min() if x.numel() else 0) >= -LEVELS


@pytest.mark.parametrize(("own", "stored"), [case for case in compressed_cases() if case[1] != "int8"])
def test_the_others_are_casts(own, stored):
    x = torch.randn(50, dtype=own)
    assert torch.equal(back(x, stored), x.to(getattr(torch, stored)).to(own))


@given(tensors(), st.sampled_from(STORED))
def test_type_shape_and_bytes_are_those_that_were_planned(x, stored):
    (value,) = encode((x,), stored)
    found = decode((value,))[0]
    assert (found.dtype, found.shape) == (x.dtype, x.shape)
    assert bytes_of(value) == encoded_bytes(x.shape, stored, name(x.dtype))


@pytest.mark.parametrize(("own", "stored"), compressed_cases())
def test_zeros_are_zeros(own, stored):
    x = torch.zeros(3, 4, dtype=own)
    assert torch.equal(back(x, stored), x)
    x[0, 0] = 1.0
    assert back(x, stored).count_nonzero() == 1


@given(tensors(), st.sampled_from(STORED), st.sampled_from([NAN, INF, -INF]), st.randoms(use_true_random=False))
def test_what_is_not_finite_does_not_become_finite(x, stored, broken, random):
    if not x.numel():
        return
    x.view(-1)[random.randrange(x.numel())] = broken
    found = back(x, stored)
    assert not bool(found.isfinite().all())
    assert bool((~found.isfinite())[~x.isfinite()].all())
    (value,) = encode((x,), stored)
    assert not bool(total(value).isfinite())
    if stored == "int8":
        assert bool(value.scale.isnan())
        assert bool(found.isnan().all())


def test_what_float16_cannot_hold_is_an_infinity():
    x = torch.tensor([7e4, -7e4, 65504.0])
    assert back(x, "float16").tolist() == [INF, -INF, 65504.0]
    assert not bool(total(one(x, "float16")).isfinite())


def test_a_large_float16_sum_is_no_overflow():
    assert bool(total(one(torch.full((100,), 6e4), "float16")).isfinite())


def test_ties_go_to_even():
    x = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5])
    assert one(x, "int8").payload.tolist() == [127, 0, 2, 2, 0, -2]


@given(tensors(torch.float64), st.sampled_from(STORED))
def test_encoding_again_changes_nothing(x, stored):
    found = back(x, stored)
    assert torch.equal(back(found, stored), found)


@given(tensors(torch.float32))
def test_in_float32_an_int8_scale_may_move_by_its_last_bit(x):
    value = one(x, "int8")
    again = one(decode((value,))[0], "int8")
    assert torch.equal(again.payload, value.payload)
    assert abs(float(again.scale) - float(value.scale)) <= float(value.scale) * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("stored", ["as-streams", *STORED])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_integers_are_left_alone(dtype, stored):
    x = torch.ones(4, dtype=dtype)
    assert encode((x,), stored)[0] is x
    assert decode((x,))[0] is x


@pytest.mark.parametrize(
    ("dtype", "stored"), [(torch.float32, "float32"), (torch.float32, "as-streams"), (torch.float64, "as-streams")]
)
def test_what_would_not_be_smaller_is_the_same_tensor(dtype, stored):
    x = torch.randn(4, dtype=dtype)
    assert encode((x,), stored)[0] is x
    assert decode(encode((x,), stored))[0] is x


def test_without_a_type_streams_are_the_same_tuple():
    streams = (torch.randn(4), torch.randn(2))
    assert encode(streams, "as-streams") is streams


def test_each_stream_has_its_own_scale():
    small, large = torch.full((3,), 1e-3), torch.full((3,), 1e3)
    found = decode(encode((small, torch.arange(3), large), "int8"))
    torch.testing.assert_close(found, (small, torch.arange(3), large), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("stored", STORED)
def test_layout_is_kept(stored):
    x = torch.randn(2, 4, 3, 3, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    assert one(x, stored).payload.is_contiguous(memory_format=torch.channels_last)
    assert back(x, stored).is_contiguous(memory_format=torch.channels_last)


def test_it_moves_whole():
    meta = torch.device("meta")
    value = one(torch.randn(3), "int8")
    moved = value.to(meta)
    assert (moved.payload.device, moved.scale.device, moved.dtype) == (meta, meta, torch.float32)
    assert one(torch.randn(3), "bfloat16").to(meta).scale is None


@pytest.mark.parametrize("stored", ["as-streams", "bfloat16", "int8"])
def test_a_copy_shares_no_memory(stored):
    streams = (torch.randn(3), torch.arange(3))
    encoded = encode(streams, stored)
    found = copied(encoded)
    for one, other in zip(decode(found), decode(encoded), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(found, encoded, strict=True):
        assert payload(one).data_ptr() != payload(other).data_ptr()
        if stored == "int8" and isinstance(one, EncodedTensor):
            assert one.scale.data_ptr() != other.scale.data_ptr()
