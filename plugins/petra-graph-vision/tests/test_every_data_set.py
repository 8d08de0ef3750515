"""What every data set promises, whatever its format."""

from __future__ import annotations

import pickle
from importlib import import_module

import numpy as np
import pytest
import torch
from petra_graph_conformance import DataSetTrial

from petra_graph.catalog.datasets import declared_datasets
from tests.support.kit import kept

ALL_DATA_SETS = {
    "cifar10": (declared_datasets.CIFAR10, "cifar10_root", {}),
    "cifar100": (declared_datasets.CIFAR100, "cifar100_root", {}),
    "fashion-mnist": (declared_datasets.FASHION_MNIST, "fashion_root", {}),
    "imagenet": (declared_datasets.IMAGENET, "folder_root", {"classes": 2, "test": "test", "size": 16, "resize": 20}),
    "imagenet32": (declared_datasets.IMAGENET32, "imagenet32_root", {}),
    "image-folder": (declared_datasets.IMAGE_FOLDER, "folder_root", {"size": 16}),
    "image-folder, cached": (declared_datasets.IMAGE_FOLDER, "folder_root", {"size": 16, "cache": True}),
    "digits": (declared_datasets.DIGITS, None, {"crop_padding": 1}),
    "random": (declared_datasets.RANDOM, None, {}),
}
NOT_AUGMENTED = {"random"}


def build(declaration, options):
    module, attribute = declaration.build.split(":")
    return getattr(import_module(module), attribute)(options)


@pytest.fixture(params=ALL_DATA_SETS)
def data(request):
    declaration, files, options = ALL_DATA_SETS[request.param]
    root = {"root": str(request.getfixturevalue(files))} if files else {}
    return build(declaration, declaration.options(**root, **options))


@pytest.mark.parametrize("name", ALL_DATA_SETS)
def test_it_keeps_every_promise(name, request):
    declaration, files, options = ALL_DATA_SETS[name]
    root = {"root": str(request.getfixturevalue(files))} if files else {}
    assert kept(DataSetTrial.of(declaration, {**root, **options})).kept


def same(one, other):
    return torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


@pytest.mark.parametrize("half", ["train", "test"])
def test_samples_match_the_facts(data, half):
    split = getattr(data, half)
    images, targets = split.fetch(np.array([4, 0, 2]), seed=0, epoch=0)
    assert (3, *data.facts.shape) == images.shape
    assert (torch.uint8, torch.int64) == (images.dtype, targets.dtype)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert targets.min() >= 0
    assert targets.max() < data.facts.classes
    assert len(split) >= 5


def test_a_training_sample_depends_on_seed_epoch_and_index_alone(data):
    whole = data.train.fetch(np.arange(12), seed=3, epoch=2)
    data.train.fetch(np.arange(3), seed=3, epoch=5)  # leaves no trace
    order = np.array([7, 3, 11, 0])
    parts = [data.train.fetch(part, seed=3, epoch=2) for part in (order[:1], order[1:])]
    assert same((whole[0][order], whole[1][order]), tuple(torch.cat(pair) for pair in zip(*parts, strict=True)))


def test_every_epoch_and_seed_augments_anew(data, request):
    images = [data.train.fetch(np.arange(12), seed=s, epoch=e)[0] for s, e in ((0, 0), (0, 1), (1, 0))]
    equal = [torch.equal(images[0], other) for other in images[1:]]
    name = request.node.callspec.params["data"]
    assert [name in NOT_AUGMENTED] * 2 == equal


def test_the_test_half_depends_on_neither_seed_nor_epoch(data):
    indices = np.arange(5)
    assert same(data.test.fetch(indices, seed=0, epoch=0), data.test.fetch(indices, seed=1, epoch=7))


def test_a_fetch_gives_memory_of_its_own(data):
    indices = np.arange(5)
    for split in (data.train, data.test):
        before = split.fetch(indices, seed=0, epoch=0)[0].clone()
        split.fetch(indices, seed=0, epoch=0)[0].zero_()
        assert torch.equal(before, split.fetch(indices, seed=0, epoch=0)[0])


def test_splits_can_be_pickled(data):
    indices = np.arange(5)
    copy = pickle.loads(pickle.dumps(data.train))
    assert same(data.train.fetch(indices, seed=0, epoch=1), copy.fetch(indices, seed=0, epoch=1))


@pytest.mark.parametrize("name", ["digits", "random"])
def test_the_declared_number_of_training_samples(name):
    declaration = ALL_DATA_SETS[name][0]
    options = declaration.options()
    assert declaration.training_samples(options) == len(build(declaration, options).train)


def test_published_numbers_of_training_samples():
    """Plans of data that is not here; a folder of other classes has another number."""
    counts = {
        key: declaration.training_samples(declaration.options(root="x"))
        for key, (declaration, files, _) in ALL_DATA_SETS.items()
        if files and declaration.training_samples
    }
    assert counts == {
        "cifar10": 50_000,
        "cifar100": 50_000,
        "fashion-mnist": 60_000,
        "imagenet": 1_281_167,
        "imagenet32": 1_281_167,
    }
    assert (
        declared_datasets.IMAGENET.training_samples(declared_datasets.IMAGENET.options(root="x", classes=100)) is None
    )
