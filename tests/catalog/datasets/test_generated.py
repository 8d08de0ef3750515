"""Data sets without files: `digits` and `random`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from petra_graph.catalog.datasets.generated import Digits, Noise
from petra_graph.catalog.datasets.splits import stratified


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


def test_noise_differs_from_sample_to_sample_and_covers_its_range():
    data = Noise(shape=(50,), dtype="int64", levels=7, classes=4, train=3000, test=3000)
    for split in (data.train, data.test):
        images, targets = everything(split)
        assert len(images.unique(dim=0)) == 3000
        np.testing.assert_allclose(np.bincount(images.flatten()) / images.numel(), 1 / 7, atol=0.02)
        np.testing.assert_allclose(np.bincount(targets) / 3000, 1 / 4, atol=0.03)
    assert not torch.equal(everything(data.train)[0], everything(data.test)[0])


def test_noise_follows_from_the_index_alone():
    short, long = (everything(Noise(train=n).train) for n in (5, 50))
    assert torch.equal(short[0], long[0][:5])
    assert torch.equal(short[1], long[1][:5])
