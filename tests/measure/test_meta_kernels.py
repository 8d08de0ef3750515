"""Results on the meta device have the forms that torch gives them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.measure import meta_kernels

ATEN = torch.ops.aten
SHAPES = st.sampled_from([(2, 3, 4, 4), (3, 4, 4), (1, 3, 1, 1), (2, 1, 4, 4), (4,), ()])
TYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64])


@st.composite
def tensors(draw):
    shape, permuted = draw(SHAPES), draw(st.booleans())
    made = torch.empty(shape, dtype=draw(TYPES), device="meta")
    if permuted and made.dim() == 4:
        return made.to(memory_format=torch.channels_last)
    return made.mT if permuted and made.dim() >= 2 else made


def form(result):
    return result.shape, result.stride(), result.dtype, result.device


@given(tensors(), tensors() | st.sampled_from([2, 2.5, True]))
def test_element_by_element_the_second_result_has_the_form_of_the_first(one, other):
    for func in (ATEN.add.Tensor, ATEN.mul.Tensor, ATEN.div.Tensor):
        found = [meta_kernels.call(func, (one, other), {}) for _ in range(2)]
        assert [form(each) for each in found] == [form(func(one, other))] * 2
        assert found[0] is not found[1]


def test_results_follow_layouts_types_and_devices():
    image = torch.empty(2, 3, 4, 4, device="meta")
    first = [image, image.to(memory_format=torch.channels_last), image.bfloat16(), image.int()]
    for one in [(each, other) for each in first for other in (1, 1.5, image, torch.tensor(1.5))]:
        assert form(meta_kernels.call(ATEN.mul.Tensor, one, {})) == form(ATEN.mul.Tensor(*one)), one


def test_what_is_written_is_returned():
    one, other = torch.empty(2, 3, device="meta"), torch.empty(3, device="meta")
    assert all(meta_kernels.call(ATEN.add_.Tensor, (one, other), {"alpha": 2}) is one for _ in range(2))


def test_what_cannot_be_broadcast_is_refused_each_time():
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"[Ss]ize"):
            meta_kernels.call(ATEN.add.Tensor, (torch.empty(2, device="meta"), torch.empty(3, device="meta")), {})


def test_lists_of_tensors_are_left_to_torch():
    """`_foreach` operations are element by element as well."""
    several = [torch.empty(2, device="meta"), torch.empty(3, device="meta")]
    found = meta_kernels.call(ATEN._foreach_add.Scalar, (several, 1.0), {})
    assert [one.shape for one in found] == [(2,), (3,)]
