"""Results on the meta device have the forms that torch gives them."""

from __future__ import annotations

import warnings

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


IMAGE, ROWS = torch.empty(2, 3, 4, 4, device="meta"), torch.empty(4, 6, device="meta")
INDICES = torch.empty(4, dtype=torch.int64, device="meta")


@pytest.mark.parametrize(
    ("func", "each"),
    [
        (ATEN.sum.dim_IntList, [(IMAGE, [1]), (IMAGE, [2, 3]), (IMAGE, [2, 3], True)]),
        (ATEN.sum.default, [(IMAGE,), (IMAGE.int(),)]),
        (ATEN.native_layer_norm, [(ROWS, [6], None, None, 1e-5), (IMAGE, [4, 4], None, None, 1e-5)]),
        (
            ATEN.convolution,
            [
                (IMAGE, torch.empty(5, 3, 3, 3, device="meta"), None, [n, n], [0, 0], [1, 1], False, [0, 0], 1)
                for n in (1, 2)
            ],
        ),
        (ATEN.nll_loss_forward, [(ROWS, INDICES, None, number, -100) for number in (0, 1)]),
        (ATEN.max.dim, [(ROWS, 0), (ROWS, 1)]),
        (ATEN.view.default, [(ROWS, [24]), (ROWS, [6, 4])]),
        (ATEN.embedding_dense_backward, [(ROWS, INDICES, 9, -1, False), (ROWS, INDICES, 8, -1, False)]),
    ],
)
def test_results_follow_every_argument(func, each):
    func = getattr(func, "default", func)
    for args in (*each, *each):
        found, expected = meta_kernels.call(func, args, {}), func(*args)
        several = isinstance(expected, tuple)
        assert list(map(form, found if several else [found])) == list(map(form, expected if several else [expected]))


@pytest.mark.parametrize("func", [ATEN.view.default, ATEN._unsafe_view.default, ATEN.detach.default])
def test_views_share_the_memory_of_what_they_show(func):
    """`_unsafe_view`, which is in every product of matrices with more than two dimensions, is not declared as a view."""
    for _ in range(2):
        found = meta_kernels.call(func, (ROWS,) if func is ATEN.detach.default else (ROWS, [24]), {})
        assert found.untyped_storage()._cdata == ROWS.untyped_storage()._cdata


def test_sparse_tensors_are_left_to_torch():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of checks that torch leaves out
        sparse = torch.sparse_coo_tensor(INDICES[None], ROWS, (9, 6))
    assert all(meta_kernels.call(ATEN.clone.default, (sparse,), {}).is_sparse for _ in range(2))
