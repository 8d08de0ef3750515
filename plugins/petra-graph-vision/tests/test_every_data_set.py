"""What every data set promises, whatever its format."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import torch
from petra_graph_vision import declared

from petra_graph.kinds.checked_samples import CheckedData
from petra_graph.testing import DataSetTrial
from tests.support.kit import kept

TRANSFORMS = {
    "augment": ({"name": "RandAugment", "num_ops": 2}, {"name": "RandomErasing", "p": 0.5}),
    "mix": ({"name": "MixUp", "alpha": 0.4}, {"name": "CutMix"}),
}
ALL_DATA_SETS = {
    "cifar10": (declared.CIFAR10, "cifar10_root", {}),
    "cifar100": (declared.CIFAR100, "cifar100_root", {}),
    "fashion-mnist": (declared.FASHION_MNIST, "fashion_root", {}),
    "imagenet": (declared.IMAGENET, "folder_root", {"classes": 2, "test": "test", "size": 16, "resize": 20}),
    "imagenet32": (declared.IMAGENET32, "imagenet32_root", {}),
    "image-folder": (declared.IMAGE_FOLDER, "folder_root", {"size": 16}),
    "image-folder, transformed": (declared.IMAGE_FOLDER, "folder_root", {"size": 16, **TRANSFORMS}),
    "fashion-mnist, transformed": (declared.FASHION_MNIST, "fashion_root", TRANSFORMS),
    "image-folder, cached": (declared.IMAGE_FOLDER, "folder_root", {"size": 16, "cache": True}),
}


def build(declaration, options):
    module, attribute = declaration.build.split(":")
    return getattr(import_module(module), attribute)(options)


@pytest.fixture(params=ALL_DATA_SETS)
def data(request):
    declaration, files, options = ALL_DATA_SETS[request.param]
    return build(declaration, declaration.options(root=str(request.getfixturevalue(files)), **options))


@pytest.mark.parametrize("name", ALL_DATA_SETS)
def test_it_keeps_every_promise(name, request):
    declaration, files, options = ALL_DATA_SETS[name]
    kept(DataSetTrial.of(declaration, {"root": str(request.getfixturevalue(files)), **options}))


@pytest.mark.parametrize("half", ["train", "test"])
def test_samples_are_in_channels_last_memory(data, half):
    images, _ = getattr(data, half).fetch(np.array([4, 0, 2]), seed=0, epoch=0)
    assert (3, *data.facts.shape) == images.shape
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_every_epoch_and_seed_augments_anew(data):
    images = [data.train.fetch(np.arange(12), seed=s, epoch=e)[0] for s, e in ((0, 0), (0, 1), (1, 0))]
    assert not any(torch.equal(images[0], other) for other in images[1:])


def test_a_share_of_the_training_is_the_validation_without_augmentation(data):
    held = CheckedData.of("it", data, 0.25).validation
    one, other = (held.fetch(np.arange(len(held)), seed=seed, epoch=seed)[0] for seed in (0, 1))
    assert len(held) == round(len(data.train) / 4)
    assert torch.equal(one, other)


def test_published_numbers_of_training_samples():
    """Plans of data that is not here; a folder of other classes has another number."""
    counts = {
        key: declaration.training_samples(declaration.options(root="x"))
        for key, (declaration, _, _) in ALL_DATA_SETS.items()
        if declaration.training_samples
    }
    assert counts == {
        "cifar10": 50_000,
        "cifar100": 50_000,
        "fashion-mnist": 60_000,
        "fashion-mnist, transformed": 60_000,
        "imagenet": 1_281_167,
        "imagenet32": 1_281_167,
    }
    assert declared.IMAGENET.training_samples(declared.IMAGENET.options(root="x", classes=100)) is None
