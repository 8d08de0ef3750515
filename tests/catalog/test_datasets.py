"""Data sets without files, `digits` and `random`; crops and flips of batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.catalog.datasets.generated import Digits, Noise
from petra_graph.catalog.datasets.splits import ImageSplit, stratified


def everything(split):
    return split.fetch(np.arange(len(split)), seed=0, epoch=0)


def test_digits_are_scikit_learns_scaled_to_bytes():
    from sklearn.datasets import load_digits

    bunch = load_digits()
    expected = sorted(zip(bunch.target.tolist(), np.rint(bunch.images * 255 / 16).tolist(), strict=True))
    data = Digits()
    came = []
    for split in (data.train, data.test):
        images, targets = everything(split)
        came += zip(targets.tolist(), images[:, 0].double().tolist(), strict=True)
    assert expected == sorted(came)


def test_the_choice_of_test_samples_is_frozen():
    # Another choice would make accuracies of different versions incomparable.
    from sklearn.datasets import load_digits

    chosen = stratified(load_digits().target, share=0.2, seed=1797)
    assert np.flatnonzero(chosen)[:10].tolist() == [4, 6, 11, 23, 25, 26, 33, 39, 48, 66]


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32", "float64"])
@pytest.mark.parametrize("shape", [(5,), (3, 4), (3, 8, 9), (2, 3, 4, 5)])
def test_noise_of_any_shape_and_dtype(shape, dtype):
    images, targets = everything(Noise(shape=shape, dtype=dtype, train=20).train)
    assert (getattr(torch, dtype), (20, *shape)) == (images.dtype, images.shape)
    assert targets.shape == (20,)


def test_noise_follows_from_the_index_alone():
    short, long = (everything(Noise(train=n).train) for n in (5, 50))
    assert torch.equal(short[0], long[0][:5])
    assert torch.equal(short[1], long[1][:5])


# --- crops and flips ---


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
