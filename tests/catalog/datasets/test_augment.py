"""Crops and flips of batches."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.catalog.datasets.splits import CropAndFlip, Draws

IMAGE = np.array([[[1], [2]], [[3], [4]]], np.uint8)


def rows(images):
    return images[..., 0].tolist()


def test_a_crop_moves_the_image_over_a_black_border():
    draws = Draws(corner=np.array([[1, 1], [0, 0], [2, 1], [1, 2]]), mirrored=np.zeros(4, bool))
    expected = [[[1, 2], [3, 4]], [[0, 0], [0, 1]], [[3, 4], [0, 0]], [[2, 0], [4, 0]]]
    crop = CropAndFlip(padding=1, flip=False)
    assert expected == rows(crop(np.stack([IMAGE] * 4), np.arange(4), draws))


def test_a_flip_mirrors_left_to_right():
    draws = Draws(corner=np.zeros((2, 2), int), mirrored=np.array([True, False]))
    assert rows(CropAndFlip(padding=0, flip=True)(np.stack([IMAGE] * 2), np.arange(2), draws)) == [
        [[2, 1], [4, 3]],
        [[1, 2], [3, 4]],
    ]


@given(
    order=st.permutations(range(6)),
    cut=st.integers(0, 6),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 400),
    augment=st.builds(CropAndFlip, padding=st.integers(0, 3), flip=st.booleans()),
)
def test_a_sample_does_not_depend_on_its_company(order, cut, seed, epoch, augment):
    images = np.arange(6 * 4 * 5 * 3, dtype=np.uint8).reshape(6, 4, 5, 3)

    def fetch(indices):
        indices = np.array(indices, int)
        return augment(images[indices], indices, augment.draws(6, seed=seed, epoch=epoch))

    together = fetch(range(6))
    apart = np.concatenate([fetch(order[:cut]), fetch(order[cut:])])
    np.testing.assert_array_equal(together[list(order)], apart)
