"""What a data set does wrong is said of the data set and its samples, never of a stage or of the learning rate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attrs import frozen

import petra_graph as pg
from petra_graph.errors import RunFailed
from petra_graph.kinds.checked_samples import CheckedSplit, sample_names
from petra_graph.kinds.data_facts import DataFacts, facts_fault

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
        "samples 440..459 of its training data: 20 samples have the shape [19, 8], where the data set declares [20, 8]",
    ),
    "dtype": (with_samples(lambda x, _: x.double()), "samples are float64, where the data set declares float32"),
    "numpy": (
        with_samples(lambda x, _: x.numpy()),
        "fetch returned a tuple of ndarray, Tensor, not a tuple of two tensors",
    ),
    "none": (lambda _: None, "fetch returned a NoneType, not a tuple of two tensors"),
    "targets": (with_targets(lambda y, _: y.float()), "targets are float32, where the data set declares int64"),
    "classes": (with_targets(lambda y, _: y + 2), "targets are 2 .. 4, where the data set declares classes 0 .. 2"),
    "dense": (
        with_targets(lambda y, _: y[:, None]),
        "20 targets have the shape [20, 1], where the data set declares [20]",
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


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda x: x["mask"], "samples are a Tensor, where the data set declares the inputs tokens, mask"),
        (
            lambda x: {"mask": x["mask"]},
            "samples are a dictionary of mask, where the data set declares the inputs tokens",
        ),
        (
            lambda x: x | {"mask": x["mask"].double()},
            'samples["mask"] are float64, where the data set declares float32',
        ),
        (
            lambda x: x | {"mask": x["mask"][:, 1:]},
            'samples["mask"] have the shape [20, 3], where the data set declares [20, 4]',
        ),
        (lambda x: x | {"mask": 1.0}, 'samples["mask"] are a float, not a tensor'),
    ],
)
def test_the_input_that_is_wrong_is_named(change, fault):
    given = Given(lambda indices: (change(tokens_and_mask(indices)), torch.from_numpy(indices % 3)))
    with pytest.raises(RunFailed) as caught:
        CheckedSplit(name="x", part="training", split=given, facts=TWO_INPUTS).fetch(np.arange(20), seed=0, epoch=0)
    assert fault in caught.value.problems[0].message


def test_several_inputs_come_in_the_declared_order():
    given = Given(lambda indices: (tokens_and_mask(indices), torch.from_numpy(indices % 3)))
    split = CheckedSplit(name="x", part="training", split=given, facts=TWO_INPUTS)
    assert list(split.fetch(np.arange(20), seed=0, epoch=0)[0]) == ["tokens", "mask"]


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        ({"shape": {}, "dtype": {}}, "have shape = {}, without a name for each input"),
        ({"shape": {"a": (2,)}}, "have dtype = 'uint8', without one type for each of shape = {'a': (2,)}"),
        (
            {"shape": {"a": (2,), "b": (0,)}, "dtype": {"a": "int64", "b": "int64"}},
            'have shape["b"] = (0,), not a tuple',
        ),
        ({"shape": {"a": (2,)}, "dtype": {"a": "int8"}}, "have dtype[\"a\"] = 'int8', not one of"),
        ({"shape": {"a": (2,)}, "dtype": {"a": "uint8"}, "mean": (0.5,), "std": (1.0,)}, "normalise in the data set"),
    ],
)
def test_facts_of_several_inputs_that_are_wrong(facts, fault):
    assert fault in facts_fault(DataFacts(**facts))


def test_targets_that_torchs_losses_pass_over():
    split = CheckedSplit(
        name="x", part="test", split=Given(with_targets(lambda y, _: torch.where(y == 1, -100, y))), facts=FACTS
    )
    split.fetch(np.arange(9), seed=0, epoch=0)


@pytest.mark.parametrize(
    ("indices", "named"),
    [
        ([7], "sample 7"),
        ([4, 5, 6], "samples 4..6"),
        ([9, 3], "samples 9, 3"),
        (range(0, 12, 2), "samples 0, 2, 4, 6 and 2 more"),
    ],
)
def test_samples_are_named(indices, named):
    assert sample_names(indices) == named


class Rows:
    """A data set that gives NaN in one sample."""

    facts = FACTS

    def __init__(self, options=None) -> None:
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


@pytest.mark.parametrize(
    ("mixed", "message"),
    [
        (lambda x, y: (x, y), r"samples 0..3 of its training data, mixed: 4 targets have"),
        (lambda x, y: (x[1:], torch.zeros(4, 3)), r"mixed: 4 samples have the shape \[3, 8\]"),
        (lambda x, y: x / "2", r"samples 0..3 of its training data, mixed: TypeError"),
    ],
)
def test_what_mixing_returns_is_checked(mixed, message):
    class Mixing(Given):
        def mix(self, samples, targets, indices, *, seed, epoch):
            return mixed(samples, targets)

    split = CheckedSplit(name='data set "mine"', part="training", split=Mixing(plain), facts=FACTS)
    with pytest.raises(RunFailed, match=message):
        split.mix(*split.fetch(np.arange(4), seed=0, epoch=0), np.arange(4), seed=0, epoch=0)
    assert CheckedSplit(name="", part="training", split=Given(plain), facts=FACTS).mix is None
