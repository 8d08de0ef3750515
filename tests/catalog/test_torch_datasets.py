"""torch Datasets as a data set: what a sample is, what its random numbers follow from, and what is refused."""

from __future__ import annotations

import pickle
import random
import re
import sys
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset

from petra_graph.blocks import random_key
from petra_graph.catalog.datasets.torch_datasets import Torch
from petra_graph.errors import PetraGraphError, PluginError, RunFailed, SpecError
from petra_graph.plugins import fork_generators, seed_generators
from petra_graph.plugins.contract import DATA_SET
from petra_graph.plugins.registry import discover
from petra_graph.spec.model import DataSpec, Spec
from petra_graph.testing import DataSetTrial
from petra_graph.training.data import OpenedData
from tests.support.kit import kept

HERE = "datasets_of_this_test"
"""A name by which code is found: that of this module has a hyphen."""
sys.modules[HERE] = sys.modules[__name__]


class Pairs(Dataset):
    """As many samples as are asked for, each what a function of the index returns."""

    def __init__(self, sample, length=6):
        self.sample, self.length = sample, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.sample(index)


def drawn(index):
    return torch.rand(2) + np.random.rand() + random.random(), index % 2  # noqa: NPY002


def row(index):
    return torch.full((3,), float(index)), index % 2


def other_row(index):
    return torch.full((3,), -1.0 - index), index % 2


ROWS, TEST = Pairs(row), Pairs(other_row, 4)
DRAWN = Pairs(drawn)


def opened(**options):
    """The data set that is opened with these options."""
    return discover().resolve(DATA_SET, "torch").read(options)[0].build()


TRIAL = DataSetTrial.of(Torch, {"train": f"{HERE}:GIVEN", "test": f"{HERE}:GIVEN_TEST"})
"""Of what `dataset` has opened."""


def checked(data, validation=None):
    spec = Spec(data=DataSpec(name="torch", batch=1, validation=validation))
    return OpenedData.open(SimpleNamespace(spec=spec, data=SimpleNamespace(build=lambda: data)))


@pytest.fixture
def dataset(monkeypatch):
    """Give this module an attribute, and open it as both Datasets."""

    def given(train, test=None, **options):
        monkeypatch.setattr(sys.modules[HERE], "GIVEN", train, raising=False)
        monkeypatch.setattr(sys.modules[HERE], "GIVEN_TEST", train if test is None else test, raising=False)
        return opened(train=f"{HERE}:GIVEN", test=f"{HERE}:GIVEN_TEST", **options)

    return given


def sample(x, y=0):
    return Pairs(lambda _: (x, y))


@pytest.mark.parametrize(
    ("x", "shape", "dtype"),
    [
        (torch.zeros(3, 4), (3, 4), "float32"),
        (torch.zeros(3, dtype=torch.float16), (3,), "float32"),
        (torch.zeros(3, dtype=torch.int32), (3,), "int64"),
        (np.zeros((2, 2), np.uint8), (2, 2), "uint8"),
        (np.zeros((2, 3))[::-1], (2, 3), "float64"),
        (np.float32(1), (), "float32"),
        (np.array(1.0, np.float32), (), "float32"),
        (np.frombuffer(b"ab", np.uint8), (2,), "uint8"),
        (1.5, (), "float32"),
        (True, (), "int64"),
        (Image.new("L", (4, 2), 51), (1, 2, 4), "float32"),
        (Image.new("1", (4, 2)), (1, 2, 4), "float32"),
        (Image.new("RGB", (4, 2)), (3, 2, 4), "float32"),
        (Image.new("P", (4, 2)), (3, 2, 4), "float32"),
        (Image.new("RGBA", (4, 2)), (4, 2, 4), "float32"),
        (Image.new("LA", (4, 2)), (2, 2, 4), "float32"),
        (Image.new("I;16", (4, 2)), (1, 2, 4), "float32"),
    ],
)
def test_what_a_sample_may_be(dataset, x, shape, dtype):
    data = dataset(sample(x))
    assert (data.facts.shape, data.facts.dtype) == (shape, dtype)
    samples, _ = data.train.fetch(np.array([0, 3]), seed=0, epoch=0)
    assert (tuple(samples.shape), samples.dtype) == ((2, *shape), getattr(torch, dtype))
    if isinstance(x, Image.Image) and x.mode == "L":
        assert samples.unique().tolist() == pytest.approx([0.2]), "from 0 to 1"


@pytest.mark.parametrize(
    ("y", "shape", "dtype"),
    [(3, (), "int64"), (0.5, (), "float32"), (np.uint8(3), (), "int64"), (torch.zeros(4, 4), (4, 4), "float32")],
)
def test_targets_without_classes(dataset, y, shape, dtype):
    facts = dataset(sample(torch.zeros(2), y)).facts
    assert (facts.target_shape, facts.target_dtype, facts.classes) == (shape, dtype, None)


def test_random_numbers_follow_from_seed_epoch_and_index(dataset):
    train = dataset(DRAWN).train
    before = random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()  # noqa: NPY002
    whole, _ = train.fetch(np.arange(4), seed=1, epoch=2)
    now = random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()  # noqa: NPY002
    assert now == before, "the process's own generators stay where they are"
    torch.rand(3)
    alone, _ = train.fetch(np.array([3]), seed=1, epoch=2)
    assert torch.equal(whole[3:], alone)
    for seed, epoch in ((2, 2), (1, 3)):
        assert not torch.equal(whole, train.fetch(np.arange(4), seed=seed, epoch=epoch)[0])
    assert len(whole.unique(dim=0)) == 4


def test_test_samples_follow_from_the_index_alone(dataset):
    test = dataset(DRAWN).test
    first, _ = test.fetch(np.arange(3), seed=0, epoch=0)
    drawn(0)  # The generators move on, which a fetch leaves where they were.
    again, _ = test.fetch(np.arange(3), seed=1, epoch=7)
    assert torch.equal(first, again)
    assert len(first.unique(dim=0)) == 3


def of_its_own(held):
    draw = held.random if not isinstance(held, torch.Generator) else lambda: torch.rand(1, generator=held)
    return Pairs(lambda _: (float(draw()), 0))


@pytest.mark.parametrize("held", [np.random.default_rng(0), random.Random(0), torch.Generator()])
def test_a_generator_of_its_own_is_refused(dataset, held):
    with pytest.raises(SpecError, match="sample 0 of `train` is another one when it is read again"):
        dataset(of_its_own(held))


class Sharded(IterableDataset):
    """Every rank yields samples of its own, as loaders for data parallelism do."""

    def __iter__(self):
        yield from map(by_rank, range(6))


def by_rank(index):
    return torch.full((2,), float(dist.get_rank() if dist.is_initialized() else 0)), 0


@pytest.mark.parametrize("sharded", [Sharded(), Pairs(by_rank)])
def test_samples_that_follow_the_process_are_refused(dataset, monkeypatch, sharded):
    data = [dataset(sharded, sample(torch.zeros(2))).train for _ in range(2)]

    def first(split):
        if isinstance(sharded, Sharded):
            return split.in_epochs(1).fetch(np.array([0]), seed=0, epoch=0)
        return split.fetch(np.array([1]), seed=0, epoch=0)

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    first(data[0])
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    with pytest.raises(RunFailed, match="follows the process's rank"):
        first(data[1])


def test_every_dataset_that_asks_is_told_the_epoch(dataset):
    class Told(Pairs):
        epoch = -1

        def set_epoch(self, epoch):
            self.epoch = epoch

    told = Told(lambda _: (float(told.epoch), 0))
    split = dataset(ConcatDataset([Subset(told, [0, 1, 2]), ROWS]), sample(0.0)).train
    assert [split.fetch(np.array([1]), seed=0, epoch=epoch)[0].item() for epoch in (0, 3)] == [0, 3]


class Drawing(IterableDataset):
    def __iter__(self):
        for index in range(5):
            yield torch.rand(2), index


def test_a_stream_goes_on_in_the_next_epoch_and_back_by_reading_it_anew(dataset):
    def expected(number):
        with fork_generators():
            seed_generators(random_key(7, number // 5, number % 5))
            return torch.rand(2)

    def read(split, *numbers):
        samples, targets = split.fetch(np.array(numbers) % 6, seed=7, epoch=numbers[0] // 6)
        assert targets.tolist() == [number % 5 for number in numbers]
        assert torch.equal(samples, torch.stack([expected(number) for number in numbers]))

    split = dataset(Drawing(), DRAWN).train.in_epochs(6)
    before = torch.get_rng_state()
    for numbers in ((0, 1), (2, 3), (4, 5), (6, 8), (19, 21), (1, 0), (3, 4)):
        read(split, *numbers)
    read(pickle.loads(pickle.dumps(split)), 13, 12)
    assert torch.equal(torch.get_rng_state(), before)
    kept(TRIAL)


class Counting(IterableDataset):
    """Its first sample is always the same one, and the others never."""

    read = 0

    def __iter__(self):
        yield torch.zeros(2), 0
        while True:
            self.read += 1
            yield torch.full((2,), float(self.read)), 0


def test_a_stream_that_goes_on_where_it_was_left_breaks_a_promise(dataset):
    dataset(Counting(), DRAWN)
    with pytest.raises(AssertionError, match="samples of `train` are others when the stream is iterated again"):
        kept(TRIAL)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            DataLoader(ROWS),
            "`train` is DataLoader, not a map-style Dataset with samples: of a DataLoader, give its `dataset`",
        ),
        (7, "`train` is int, not a map-style Dataset"),
        (Pairs(ROWS.sample, 0), "`train` is Pairs, not a map-style Dataset with samples"),
        (Pairs(lambda _: torch.zeros(3)), "a sample is a Tensor, not a pair"),
        (Pairs(lambda _: (1.0, 2, 3)), "a sample is a tuple, not a pair"),
        (sample("text"), "invalid data type 'str'"),
        (sample(torch.zeros(2), None), "Could not infer dtype of NoneType"),
        (sample(torch.zeros(2, dtype=torch.complex64)), 'type "complex64"'),
        (sample(Image.new("I", (2, 2))), "its pixels have mode I"),
    ],
)
def test_what_is_no_map_style_data_set_of_pairs(dataset, given, reason):
    with pytest.raises(PetraGraphError, match=reason):
        dataset(given)


def two_inputs(index):
    return {
        "image": torch.full((1, 2, 2), index, dtype=torch.uint8),
        "numbers": torch.full((3,), 1.0 + index),
    }, index % 2


class Named(NamedTuple):
    image: torch.Tensor
    numbers: torch.Tensor


@pytest.mark.parametrize(
    ("x", "names"), [((torch.zeros(2), 1.0), ["x0", "x1"]), (Named(1.0, 2.0), ["image", "numbers"])]
)
def test_inputs_in_a_tuple_have_names_as_well(dataset, x, names):
    assert list(dataset(sample(x)).facts.inputs) == names


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (lambda x: x | {"numbers": torch.zeros(4)}, 'x["image"] uint8 [1, 2, 2], x["numbers"] float32 [4], y int64 []'),
        (lambda x: {"image": x["image"]}, 'x["image"] uint8 [1, 2, 2], y int64 []'),
        (lambda x: x["image"], "x uint8 [1, 2, 2], y int64 []"),
    ],
)
def test_the_sample_that_differs_is_named(dataset, other, found):
    def item(index):
        x, y = two_inputs(index)
        return (other(x) if index == 2 else x), y

    wanted = 'x["image"] uint8 [1, 2, 2], x["numbers"] float32 [3], y int64 []'
    message = f"sample 2 of its training data: ValueError: it is {found}, and training sample 0 is {wanted}"
    with pytest.raises(RunFailed, match=re.escape(message)):
        checked(dataset(Pairs(item))).train.fetch(np.arange(4), seed=0, epoch=0)


def broken_at(wrong):
    def item(index):
        if index == wrong:
            raise KeyError("lost")
        return torch.zeros(3), 0

    return Pairs(item)


def test_an_item_that_raises_is_named_with_its_line(dataset):
    train = checked(dataset(broken_at(4))).train
    with pytest.raises(
        RunFailed, match=r"sample 4 of its training data: KeyError: 'lost'(.|\n)*test_torch_datasets.py:"
    ):
        train.fetch(np.arange(6), seed=0, epoch=0)
    with pytest.raises(PluginError, match=r"KeyError: 'lost'(.|\n)*test_torch_datasets.py:"):
        dataset(broken_at(0))


def test_a_share_is_of_the_dataset_without_augmentation():
    named = {"train": "DRAWN", "test": "TEST", "plain": "DRAWN", "validation": "TEST"}
    options = {option: f"{HERE}:{name}" for option, name in named.items()}
    assert len(checked(opened(**options, classes=2), "validation").validation) == 4
    data = checked(opened(**options, classes=2), 0.5)
    assert sorted([*data.train.rows, *data.validation.rows]) == list(range(6))
    one, other = (data.validation.fetch(np.arange(3), seed=seed, epoch=seed)[0] for seed in (0, 1))
    assert torch.equal(one, other), "whatever it draws follows from the index alone"
    one, other = (data.train.fetch(np.arange(3), seed=0, epoch=epoch)[0] for epoch in (0, 1))
    assert not torch.equal(one, other)
