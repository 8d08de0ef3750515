"""What a data set does wrong is said of the data set and its samples; and means over samples do not depend on how they were batched."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from attrs import field, frozen
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.errors import RunFailed, SpecError
from petra_graph.executor.head import HeadResult
from petra_graph.plugins.callback import Listener
from petra_graph.plugins.data_set import DataFacts
from petra_graph.spec.model import DataSpec, Spec
from petra_graph.training.data import CheckedSplit, OpenedData, draw_share
from petra_graph.training.evaluation import Meters
from petra_graph.training.run import run
from tests.support.runs import SPEC

FACTS = DataFacts(shape=(8,), dtype="float32", classes=3)


def pair(indices):
    rows = [np.random.default_rng(index).standard_normal(8, np.float32) for index in indices]
    return torch.from_numpy(np.stack(rows)), torch.from_numpy(indices % 3)


@frozen
class Given:
    """600 samples, with what a function makes of samples, targets and indices."""

    change: object = lambda x, y, _: (x, y)

    def __len__(self):
        return 600

    def fetch(self, indices, *, seed, epoch):
        return self.change(*pair(indices), indices)


def checked(split, facts=FACTS):
    return CheckedSplit(name='data set "mine"', part="training", split=split, facts=facts)


def raises(x, y, indices):
    if 441 in indices:
        raise ValueError("no such key")
    return x, y


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (raises, "sample 441 of its training data: ValueError: no such key"),
        (lambda x, y, _: (x[1:], y[1:]), "samples 440, 441, 442, 443 and 16 more of its training data: samples are float32 [19, 8] on cpu, where the"),
        (lambda x, y, _: (x.double(), y), "samples are float64 [20, 8] on cpu, where"),
        (lambda x, y, _: (x.numpy(), y), "samples are ndarray on cpu, where the data set declares"),
        (lambda x, y, _: None, "fetch returned a NoneType, not a pair of samples and targets"),
        (lambda x, y, _: (x, y.float()), "targets are float32 [20] on cpu, where the data set declares int64"),
        (lambda x, y, _: (x, y + 1), "targets are 1 .. 3, where the data set declares classes 0 .. 2"),
        (lambda x, y, _: (x, y[:, None]), "targets are int64 [20, 1] on cpu, where the data set declares int64 [20]"),
    ],
)  # fmt: skip
def test_the_data_set_is_named_with_its_samples(change, message):
    with pytest.raises(RunFailed) as caught:
        checked(Given(change)).fetch(np.arange(440, 460), seed=0, epoch=0)
    (problem,) = caught.value.problems
    assert problem.message.startswith('data set "mine", sample')
    assert message in problem.message
    assert problem.hint


def test_several_inputs_come_in_the_declared_order_and_targets_may_be_ignored():
    facts = DataFacts(shape={"tokens": (8,), "mask": (8,)}, dtype={"tokens": "float32", "mask": "float32"}, classes=3)
    split = Given(lambda x, y, _: ({"mask": x, "tokens": x}, torch.where(y == 1, -100, y)))
    assert list(checked(split, facts).fetch(np.arange(20), seed=0, epoch=0)[0]) == ["tokens", "mask"]
    # A mix, which may draw for one input after the other, is given them in that order too, and may return them in another.
    mixing = Mixing(split.change)
    mixed = checked(mixing, facts).fetch(np.arange(20), seed=0, epoch=0, mixed=True)[0]
    assert (mixing.given, list(mixed)) == ([["tokens", "mask"]], ["tokens", "mask"])


@frozen
class Mixing(Given):
    given: list[object] = field(factory=list)

    def mix(self, samples, targets, indices, *, seed, epoch):
        if isinstance(samples, dict):
            self.given.append(list(samples))
            samples = dict(reversed(samples.items()))
        return samples, targets + 1000 * torch.from_numpy(indices)


def test_a_split_mixes_with_its_own_rows():
    facts = DataFacts(shape=(8,), dtype="float32", classes=3)
    split = CheckedSplit(name="mine", part="training", split=Mixing(), rows=np.array([7, 3, 9]), facts=facts)
    fetched = [split.fetch(np.array([2, 0]), seed=0, epoch=0, mixed=mixed)[1].tolist() for mixed in (False, True)]
    assert fetched == [[0, 1], [9000, 7001]]
    assert (split.mixes, checked(Given()).mixes) == (True, False)


# --- validation samples ---


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
    dev: object = None
    facts: DataFacts = DataFacts(shape=(), dtype="int64")


@frozen
class Mine:
    """What is known of a data set before it is opened."""

    data: Data

    def build(self):
        return self.data

    def __str__(self):
        return 'data set "mine"'


def split_up(data, validation):
    spec = Spec(data=DataSpec(name="mine", batch=1, validation=validation))
    return OpenedData.open(SimpleNamespace(spec=spec, data=Mine(data)))


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
    data = split_up(Data(Numbers(0, 12, augments=True)), 0.25)
    assert contents(data.validation) == [1, 8, 9]
    assert sorted(contents(data.train) + contents(data.validation)) == list(range(12))
    images, _ = data.validation.fetch(np.array([0, 2]), seed=0, epoch=3)
    augmented, targets = data.train.fetch(np.array([0, 1]), seed=0, epoch=3)
    assert images.tolist() == [1, 9]
    assert (augmented.tolist(), targets.tolist()) == ([3000, 3002], [0, 2])
    assert data.train.fetch_targets(np.array([3, 4])).tolist() == [4, 5]
    assert contents(data.test) == list(range(500, 510))


def test_overlapping_samples_are_set_apart_by_their_split():
    data = split_up(Data(Halves(0, 10)), 0.3)
    assert (contents(data.train), contents(data.validation)) == (list(range(7)), [7, 8, 9])


@pytest.mark.parametrize(
    ("data", "validation", "said"),
    [
        (Data(Numbers(0, 10)), "validation", 'data set "mine" has no split "validation"'),
        (Data(Numbers(0, 10)), 0.01, "a share of 0.01 of 10 training samples is no sample"),
        (Data(Plainless(0, 10)), 0.5, "no view of them without augmentation"),
        (Data(Halves(0, 10)), 0.99, "too short"),
    ],
)
def test_what_cannot_be_given_is_refused_at_its_key(data, validation, said):
    with pytest.raises(SpecError) as caught:
        split_up(data, validation)
    (problem,) = caught.value.problems
    assert said in f"{problem.message}; {problem.hint}"
    assert problem.path == ("data", "validation")


# --- means over samples ---


def result(losses: list[float], right: int) -> HeadResult:
    return HeadResult(
        micro_batch=0,
        samples=len(losses),
        weight=len(losses),
        counted=len(losses),
        loss=torch.tensor(sum(losses) / len(losses), dtype=torch.float64),
        metrics={"top1": torch.tensor(right)},
    )


@given(st.lists(st.lists(st.floats(0, 10), min_size=1, max_size=6), min_size=1, max_size=6))
def test_the_mean_is_the_samples_own(parts):
    totals = Meters()
    for losses in parts:
        totals.add(result(losses, len(losses)))
    every = [loss for losses in parts for loss in losses]
    assert totals.means() == pytest.approx({"loss": sum(every) / len(every), "top1": 1.0})


def test_a_loss_is_divided_by_its_weight_and_a_metric_by_what_it_counts():
    totals, whole = Meters(), Meters()
    totals.add(result([4.0, 4.0], 2)._replace(weight=0.5))
    totals.add(result([1.0], 1)._replace(weight=1.0))
    for half in (totals.sums(), {**Meters().sums(), "sums": {}}):
        whole.merge(json.loads(json.dumps(half)))
    assert whole.means() == totals.means() == {"loss": 2.0, "top1": 1.0}


def test_a_loss_that_is_a_million_times_the_first_one(write):
    with pytest.raises(
        RunFailed, match=r"the loss at micro-batch \d+ \(epoch 1\) is \d.*, and that of the first one was 2\."
    ):
        run(write("small.toml", SPEC), ["optimizer.options.lr=1e6"], Listener())
