"""Crops and flips of batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.catalog.datasets.splits import ImageSplit

IMAGE = np.array([[[1], [2]], [[3], [4]]], np.uint8)


@pytest.mark.parametrize(
    ("options", "corner", "mirrored", "expected"),
    [
        # A crop moves the image over a black border.
        ({"crop_padding": 1}, [1, 1], False, [[1, 2], [3, 4]]),
        ({"crop_padding": 1}, [0, 0], False, [[0, 0], [0, 1]]),
        ({"crop_padding": 1}, [2, 1], False, [[3, 4], [0, 0]]),
        ({"crop_padding": 1}, [1, 2], False, [[2, 0], [4, 0]]),
        ({"flip": True}, [0, 0], True, [[2, 1], [4, 3]]),
        ({"flip": True}, [0, 0], False, [[1, 2], [3, 4]]),
    ],
)
def test_a_crop_and_a_flip(options, corner, mirrored, expected):
    split = ImageSplit(IMAGE[None], np.zeros(1, int), **options)
    split._drawn = (3, 7), np.array([corner]), np.array([mirrored])
    assert split.fetch(np.array([0]), seed=3, epoch=7)[0][0, 0].tolist() == expected


@given(
    order=st.permutations(range(6)),
    cut=st.integers(0, 6),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 400),
    options=st.fixed_dictionaries({"crop_padding": st.integers(0, 3), "flip": st.booleans()}),
)
def test_a_sample_does_not_depend_on_its_company(order, cut, seed, epoch, options):
    images = np.arange(6 * 4 * 5 * 3, dtype=np.uint8).reshape(6, 4, 5, 3)

    def fetch(indices):
        split = ImageSplit(images, np.arange(6), **options)
        return split.fetch(np.array(indices, int), seed=seed, epoch=epoch)[0]

    together = fetch(range(6))
    apart = torch.cat([fetch(order[:cut]), fetch(order[cut:])])
    assert torch.equal(together[list(order)], apart)


def test_the_draws_are_frozen():
    # Others would change every recorded run.
    split = ImageSplit(np.zeros((4, 2, 2, 1), np.uint8), np.zeros(4, int), crop_padding=4, flip=True)
    split.fetch(np.array([0]), seed=1, epoch=2)
    corner, mirrored = split._drawn[1:]
    assert corner.tolist() == [[5, 8], [3, 0], [4, 6], [6, 0]]
    assert mirrored.tolist() == [True, True, False, False]
