"""What a data set does wrong is said of the data set and its samples, never of a stage or of the learning rate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

import petra_graph as pg
from petra_graph.errors import RunFailed, SpecError
from petra_graph.plugins.checked_samples import CheckedData, CheckedSplit, draw_share
from petra_graph.plugins.data_set import DataFacts

FACTS = DataFacts(shape=(8,), dtype="float32", classes=3)


def plain(indices):
    rows = [np.random.default_rng(index).standard_normal(8, np.float32) for index in indices]
    return torch.from_numpy(np.stack(rows)), torch.from_numpy(indices % 3)


def raises(indices):
    if 441 in indices:
        raise ValueError("no such key")
    return plain(indices)


def short(indices):
    samples, targets = plain(indices)
    return samples[1:], targets[1:]


@frozen
class Given:
    function: object

    def __len__(self):
        return 600

    def fetch(self, indices, *, seed, epoch):
        return self.function(indices)


def with_samples(change):
    def fetch(indices):
        samples, targets = plain(indices)
        return change(samples, indices), targets

    return fetch


def with_targets(change):
    def fetch(indices):
        samples, targets = plain(indices)
        return samples, change(targets, indices)

    return fetch


def nan_in_441(samples, indices):
    samples[indices == 441] = float("nan")
    return samples


WRONG = {
    "raises": (raises, 'data set "mine", sample 441 of its training data: ValueError: no such key'),
    "rows": (
        short,
        "samples 440..459 of its training data: samples are float32 [19, 8] on cpu, where the data set declares float32 [20, 8] on cpu",
    ),
    "dtype": (with_samples(lambda x, _: x.double()), "samples are float64 [20, 8] on cpu, where"),
    "numpy": (with_samples(lambda x, _: x.numpy()), "samples are ndarray, where the data set declares"),
    "none": (lambda _: None, "fetch returned a NoneType, not a pair of samples and targets"),
    "targets": (
        with_targets(lambda y, _: y.float()),
        "targets are float32 [20] on cpu, where the data set declares int64",
    ),
    "classes": (with_targets(lambda y, _: y + 2), "targets are 2 .. 4, where the data set declares classes 0 .. 2"),
    "dense": (
        with_targets(lambda y, _: y[:, None]),
        "targets are int64 [20, 1] on cpu, where the data set declares int64 [20]",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_the_data_set_is_named_with_its_samples(wrong):
    function, message = WRONG[wrong]
    split = CheckedSplit(name='data set "mine"', part="training", split=Given(function), facts=FACTS)
    with pytest.raises(RunFailed) as caught:
        split.fetch(np.arange(440, 460), seed=0, epoch=0)
    (problem,) = caught.value.problems
    assert problem.message.startswith('data set "mine", sample')
    assert message in problem.message
    assert problem.hint


def tokens_and_mask(indices):
    return {"mask": torch.ones(len(indices), 4), "tokens": torch.zeros(len(indices), 4, dtype=torch.int64)}


TWO_INPUTS = DataFacts(shape={"tokens": (4,), "mask": (4,)}, dtype={"tokens": "int64", "mask": "float32"}, classes=3)


def test_several_inputs_come_in_the_declared_order():
    given = Given(lambda indices: (tokens_and_mask(indices), torch.from_numpy(indices % 3)))
    split = CheckedSplit(name="x", part="training", split=given, facts=TWO_INPUTS)
    assert list(split.fetch(np.arange(20), seed=0, epoch=0)[0]) == ["tokens", "mask"]


def test_targets_that_torchs_losses_pass_over():
    split = CheckedSplit(
        name="x", part="test", split=Given(with_targets(lambda y, _: torch.where(y == 1, -100, y))), facts=FACTS
    )
    split.fetch(np.arange(9), seed=0, epoch=0)


class Rows:
    """A data set that gives NaN in one sample."""

    facts = FACTS

    def __init__(self) -> None:
        self.train, self.test = Given(with_samples(nan_in_441)), Given(plain)


def test_a_sample_that_is_not_finite_is_blamed_and_not_the_stem(here):
    """The run said that the loss began in stage 1 (stem), and advised a lower learning rate."""
    spec = pg.make_spec(
        data={"name": Rows, "batch": 20},
        graph={
            "node": [
                {"name": "stem", "block": "linear-stem", "options": {"features": 6}},
                {"name": "head", "block": "pool-linear", "options": {"outputs": 3}},
            ]
        },
    )
    with pytest.raises(RunFailed) as caught:
        pg.train(spec)
    (problem,) = caught.value.problems
    assert (
        problem.message == f'data set "{Rows.__module__}:Rows", sample 441 of its training data: samples are not finite'
    )
    assert "learning rate" not in problem.hint


# Validation samples


NUMBER = DataFacts(shape=(), dtype="int64")


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
    facts: DataFacts = NUMBER


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


def test_messages_name_the_samples_own_rows():
    data = checked(Data(Numbers(0, 40)), 0.5)
    held = 13 in data.validation.rows
    with pytest.raises(RunFailed, match=rf"sample 13 of its {'validation' if held else 'training'} data: .*unlucky"):
        contents(data.validation if held else data.train)


def test_overlapping_samples_are_set_apart_by_their_split():
    data = checked(Data(Halves(0, 10)), 0.3)
    assert (contents(data.train), contents(data.validation)) == (list(range(7)), [7, 8, 9])


@pytest.mark.parametrize(
    ("data", "validation", "error", "said"),
    [
        (Data(Numbers(0, 10)), "validation", SpecError, 'data set "mine" has no split "validation"'),
        (Data(Numbers(0, 10), dev=Numbers(0, 3)), "def", SpecError, "did you mean 'dev'?"),
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
