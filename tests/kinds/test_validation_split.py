"""Validation samples: no training sample is one of them, every sample is used, and what a data set cannot give is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attrs import field, frozen
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.catalog.datasets.splits import CropAndFlip, ImageSplit, OpenedDataSet
from petra_graph.errors import PluginError, RunFailed, SpecError
from petra_graph.kinds.checked_samples import CheckedData
from petra_graph.kinds.data_facts import DataFacts
from petra_graph.kinds.validation_split import draw_share

FACTS = DataFacts(shape=(), dtype="int64")


@frozen
class Numbers:
    """Samples that are their own indices, and augmented by the epoch."""

    first: int
    length: int
    augments: bool = False

    def __len__(self):
        return self.length

    @property
    def plain(self):
        return Numbers(self.first, self.length)

    def fetch(self, indices, *, seed, epoch):
        if 13 in indices:
            raise ValueError("unlucky")
        samples = torch.from_numpy(indices + self.first)
        return samples + 1000 * epoch * self.augments, samples

    def fetch_targets(self, indices):
        return torch.from_numpy(indices + self.first)


class Plainless(Numbers):
    plain = None


class Halves(Plainless):
    """Samples that overlap: the split sets the end apart itself."""

    def set_apart(self, share):
        first = self.length - round(share * self.length)
        if first == 0:
            raise SpecError("too short")
        return Numbers(self.first, first), Numbers(self.first + first, self.length - first)


@frozen
class Data:
    train: object
    test: object = Numbers(500, 10)
    validation: object = None
    dev: object = None
    facts: DataFacts = FACTS


@frozen
class Files(Numbers):
    files: list = field(factory=list)


def checked(data, validation, seed=0):
    return CheckedData.of('data set "mine"', data, validation, seed)


def contents(split):
    return split.fetch(np.arange(len(split)), seed=0, epoch=0)[1].tolist()


@given(st.integers(2, 400), st.floats(0.01, 0.99), st.integers(0, 2**63 - 1))
def test_every_sample_is_in_one_of_the_two(samples, share, seed):
    if not round(share * samples):
        return
    train, validation = draw_share(samples, share, seed)
    assert sorted([*train, *validation]) == list(range(samples))
    assert len(validation) == round(share * samples)


def test_the_draw_is_frozen_and_follows_the_seed():
    # Another one would let resumed runs train on what they have been judged by.
    assert [draw_share(12, 0.25, seed)[1].tolist() for seed in (0, 0, 1)] == [[1, 8, 9], [1, 8, 9], [0, 8, 10]]


def test_a_share_is_not_augmented_and_the_rest_is_as_before():
    data = checked(Data(Numbers(0, 12, augments=True)), 0.25)
    assert contents(data.validation) == [1, 8, 9]
    assert sorted(contents(data.train) + contents(data.validation)) == list(range(12))
    images, _ = data.validation.fetch(np.array([0, 2]), seed=0, epoch=3)
    augmented, targets = data.train.fetch(np.array([0, 1]), seed=0, epoch=3)
    assert images.tolist() == [1, 9]
    assert (augmented.tolist(), targets.tolist()) == ([3000, 3002], [0, 2])
    assert data.train.fetch_targets(np.array([3, 4])).tolist() == [4, 5]
    assert contents(data.test) == list(range(500, 510))


def test_images_have_the_augmentation_that_they_have_without_a_validation():
    pixels = np.random.default_rng(0).integers(0, 256, (20, 4, 4, 1), dtype=np.uint8)
    train = ImageSplit(pixels=pixels, targets=np.arange(20), augment=CropAndFlip(padding=1, flip=True))
    facts = DataFacts(shape=(1, 4, 4), classes=20)
    data = checked(OpenedDataSet(train=train, test=train, facts=facts), 0.3)
    rows = data.train.rows
    assert torch.equal(data.train.fetch(np.arange(14), seed=5, epoch=2)[0], train.fetch(rows, seed=5, epoch=2)[0])
    held = data.validation.fetch(np.arange(6), seed=5, epoch=2)[0]
    assert np.array_equal(held.permute(0, 2, 3, 1), pixels[data.validation.rows])


def test_messages_and_files_are_those_of_the_samples_own_rows():
    files = [f"{at}.png" for at in range(40)]
    data = checked(Data(Files(0, 40, files=files)), 0.5)
    held = 13 in data.validation.rows
    split = data.validation if held else data.train
    assert split.files == [f"{row}.png" for row in split.rows]
    with pytest.raises(RunFailed, match=rf"sample 13 of its {'validation' if held else 'training'} data: .*unlucky"):
        contents(split)


def test_overlapping_samples_are_set_apart_by_their_split():
    data = checked(Data(Halves(0, 10)), 0.3)
    assert (contents(data.train), contents(data.validation)) == (list(range(7)), [7, 8, 9])


def test_a_split_of_its_own_leaves_the_training_whole():
    data = checked(Data(Numbers(0, 10), dev=Numbers(900, 3)), "dev")
    assert (len(data.train), contents(data.validation)) == (10, [900, 901, 902])


@pytest.mark.parametrize(
    ("data", "validation", "error", "said"),
    [
        (Data(Numbers(0, 10)), "validation", SpecError, 'data set "mine" has no split "validation"'),
        (Data(Numbers(0, 10), dev=Numbers(0, 3)), "def", SpecError, "did you mean 'dev'?"),
        (Data(Numbers(0, 10), dev=Numbers(0, 0)), "dev", PluginError, "its split `dev` is empty"),
        (Data(Numbers(0, 10)), 0.01, SpecError, "a share of 0.01 of 10 training samples is no sample"),
        (Data(Plainless(0, 10)), 0.5, SpecError, "no view of them without augmentation"),
        (Data(Halves(0, 10)), 0.99, SpecError, "too short"),
    ],
)
def test_what_cannot_be_given_is_refused_at_its_key(data, validation, error, said):
    with pytest.raises(error) as caught:
        checked(data, validation)
    (problem,) = caught.value.problems
    assert said in f"{problem.message}; {problem.hint}"
    assert problem.path == ("data", "validation")


def test_a_plain_view_of_other_samples_is_broken():
    class Short(Numbers):
        @property
        def plain(self):
            return Numbers(0, 4)

    with pytest.raises(PluginError, match=r"its split `train` has 10 samples, and `train.plain` 4"):
        checked(Data(Short(0, 10)), 0.5)
