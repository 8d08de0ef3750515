"""Mistakes that authors of data sets make: what evaluations spoil, splits that overlap, ranges, classes, lengths, epochs."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve
from petra_graph_conformance import DataSetTrial
from petra_graph_conformance.examined_promises import examine

from petra_graph.plugins import DataFacts, DataSetDeclaration
from tests.support.plugin_of_each_kind import FACTS, Data, Split, TestSplit, declared

IMAGES = DataFacts(shape=(3, 4, 4), dtype="uint8", classes=3, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


def of(train, test=None, facts=FACTS):
    """Return the outcomes of a data set with these splits that are not kept."""

    class Mine(Data):
        pass

    Mine.train, Mine.test, Mine.facts = train, test or TestSplit(8), facts
    declaration = declared(DataSetDeclaration, Mine, facts=lambda _: facts)
    outcomes = examine(DataSetTrial.of(declaration), leave_out=["workers"]).outcomes
    return {one.promise: (one.status, f"{one.found} do: {one.remedy}") for one in outcomes if one.found}


class InTensors(Split):
    """Samples as a tensor; a slice of it is the tensor's own memory."""

    def __init__(self, length, seed=0):
        super().__init__(length)
        self.x = torch.rand(length, 2, 3, generator=torch.Generator().manual_seed(seed))

    def fetch(self, indices, *, seed, epoch):
        return self.x[indices], self.fetch_targets(indices)


class NormalisedInPlace(InTensors):
    def fetch(self, indices, *, seed, epoch):
        first, last = int(indices[0]), int(indices[-1])
        in_order = last - first == len(indices) - 1 and len(indices) > 1
        x = self.x[first : last + 1].sub_(0.5) if in_order else self.x[indices] - 0.5
        return x, self.fetch_targets(indices)


class OneTooMany(InTensors):
    def __len__(self):
        return self.length + 1

    def fetch(self, indices, *, seed, epoch):
        return super().fetch(self.held(indices), seed=seed, epoch=epoch)

    def held(self, indices):
        return indices % self.length


class StaysAtTheEnd(OneTooMany):
    def held(self, indices):
        return indices.clip(max=self.length - 1)

    def fetch_targets(self, indices):
        return super().fetch_targets(self.held(indices))


class Images(Split):
    def sample(self, index, seed, epoch):
        return torch.randint(256, (3, 4, 4), generator=torch.Generator().manual_seed(index)).to(torch.uint8)


class InFloats(Images):
    """Of 0 .. 255, in floats: the mean is that of samples in [0, 1]."""

    def sample(self, index, seed, epoch):
        return super().sample(index, seed, epoch).float()


class TestImages(Images):
    __test__ = False

    def sample(self, index, seed, epoch):
        return super().sample(1000 + index, seed, epoch)


class TestFloats(InFloats):
    __test__ = False

    def sample(self, index, seed, epoch):
        return super().sample(1000 + index, seed, epoch)


class Without2(Split):
    def fetch_targets(self, indices):
        return super().fetch_targets(indices).clamp(max=1)


class OfTheSeed(Split):
    def sample(self, index, seed, epoch):
        return super().sample(index, seed, 0)


class Permuted(InTensors):
    def __init__(self, other, length):
        super().__init__(length)
        self.x = other.x.flip(0)[:length]


class Stream:
    """A training split of unknown length, of which a pass has ten samples."""

    def iterate(self, *, seed, number):
        for _ in range(10):
            yield torch.rand(FACTS.shape), torch.randint(FACTS.classes, ())


class Remembers(Stream):
    def __init__(self):
        self.given = 0

    def iterate(self, *, seed, number):
        for x, y in super().iterate(seed=seed, number=number):
            self.given += 1
            yield x + self.given, y


class OfTwoParts(Stream):
    def iterate(self, seed):
        return iter(())


TRAIN = InTensors(60)


@pytest.mark.parametrize(
    ("data", "promise", "status", "found"),
    [
        ((Remembers(),), "passes", "broken", "are others when it is iterated again do: let each iteration begin anew"),
        ((OfTwoParts(),), "construction", "broken", "iterate"),
        ((NormalisedInPlace(20),), "repeatable", "broken", "as evaluations do, are others at the second call do: write to copies"),
        ((TRAIN, Permuted(TRAIN, 20)), "apart", "doubtful", "20 of 20 test samples are training samples do: keep samples"),
        ((InFloats(20), TestFloats(8), evolve(IMAGES, dtype="float32")), "pixels", "doubtful", "do: give mean and std for samples in [0, 1]"),
        ((Without2(80),), "every class", "doubtful", "80 training samples, drawn at random, have no class 2 of 3 do: see"),
        ((OneTooMany(20),), "last sample", "doubtful", "the last sample of `train`, 20, is sample 0 once more do: let len()"),
        ((StaysAtTheEnd(20),), "last sample", "doubtful", "the last sample of `train`, 20, is sample 19 once more do: let len()"),
        ((OfTheSeed(20),), "epochs", "doubtful", "are the same in every epoch do: draw with np.random.default_rng([seed,"),
    ],
)  # fmt: skip
def test_a_mistake_is_found_by_its_promise(data, promise, status, found):
    outcomes = of(*data)
    assert outcomes[promise][0] == status
    assert found in outcomes[promise][1]


@pytest.mark.parametrize(
    "data",
    [(Split(80),), (Stream(),), (InTensors(80), InTensors(20, seed=1)), (Images(20), TestImages(8), IMAGES)],
)
def test_a_right_data_set_is_accepted(data):
    assert of(*data) == {}
