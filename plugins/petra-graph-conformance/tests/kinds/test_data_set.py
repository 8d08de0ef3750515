"""Data sets, each wrong in one way: the promise that it breaks says so."""

from __future__ import annotations

import random
import sys

import attrs
import pytest
import torch
from petra_graph_conformance import DataSetTrial
from petra_graph_conformance.examined_promises import examine

from petra_graph.errors import PluginError
from petra_graph.kinds.data_facts import facts_fault
from petra_graph.kinds.declared_data import completed_options, suggested_options
from petra_graph.plugins import DataFacts, DataSetDeclaration
from tests.support.kit import importable, kept
from tests.support.plugin_of_each_kind import FACTS, Data, Split, TestSplit, broken, declared

HERE = importable(__name__)


class RowShort(Split):
    def fetch(self, indices, *, seed, epoch):
        samples, targets = super().fetch(indices, seed=seed, epoch=epoch)
        return samples[1:], targets


class OneTensor(Split):
    def fetch(self, indices, *, seed, epoch):
        return super().fetch(indices, seed=seed, epoch=epoch)[0]


class Doubles(Split):
    def sample(self, index, seed, epoch):
        return super().sample(index, seed, epoch).double()


class NotNumbers(Split):
    def sample(self, index, seed, epoch):
        return super().sample(index, seed, epoch) / 0 * 0


class ShortTargets(Split):
    def fetch_targets(self, indices):
        return super().fetch_targets(indices)[:-1]


class FromOne(Split):
    def fetch_targets(self, indices):
        return super().fetch_targets(indices) + 1


class FloatTargets(Split):
    def fetch_targets(self, indices):
        return super().fetch_targets(indices).float()


class OfTheBatch(Split):
    def fetch(self, indices, *, seed, epoch):
        samples, targets = super().fetch(indices, seed=seed, epoch=epoch)
        return samples - samples.mean(0), targets


class ByPosition(Split):
    def fetch(self, indices, *, seed, epoch):
        noise = torch.randn(len(indices), 2, 3, generator=torch.Generator().manual_seed(seed))
        return noise, self.fetch_targets(indices)


class Augments(Split):
    def sample(self, index, seed, epoch):
        return super().sample(index, seed, epoch) * random.random()


class CountsItsCalls(Split):
    calls = 0

    def fetch(self, indices, *, seed, epoch):
        self.calls += 1
        samples, targets = super().fetch(indices, seed=seed, epoch=epoch)
        return samples + self.calls, targets


class DrawsInVain(Split):
    def sample(self, index, seed, epoch):
        torch.rand(())
        return super().sample(index, seed, epoch)


class OtherTargetsAlone(Split):
    def fetch(self, indices, *, seed, epoch):
        samples, targets = super().fetch(indices, seed=seed, epoch=epoch)
        return samples, 2 - targets


class GivesItsMemory(Split):
    def __init__(self, length):
        super().__init__(length)
        self.data = torch.arange(6.0 * length).reshape(length, 2, 3)

    def fetch(self, indices, *, seed, epoch):
        if len(indices) == 1:
            return self.data[int(indices[0])][None], self.fetch_targets(indices)
        return self.data[torch.as_tensor(indices.copy())], self.fetch_targets(indices)


class CannotBePickled(Split):
    def __init__(self, length):
        super().__init__(length)
        self.open = lambda: None


class WithPlain(Split):
    def __init__(self, length, plain):
        super().__init__(length)
        self.plain = plain


class OtherClasses(TestSplit):
    def fetch_targets(self, indices):
        return (super().fetch_targets(indices) + 1) % 3


class PicklesOtherwise(Split):
    def __getstate__(self):
        return {"length": self.length, "shift": 1.0}

    shift = 0.0

    def sample(self, index, seed, epoch):
        return super().sample(index, seed, epoch) + self.shift


def data(train=None, test=None, facts=FACTS, opened=FACTS):
    class Own(Data):
        pass

    Own.train = Data.train if train is None else train
    Own.test = Data.test if test is None else test
    Own.facts = opened
    return declared(DataSetDeclaration, Own, facts=lambda _: facts)


def found_in(**how):
    return broken(DataSetTrial.of(data(**how)))


def test_what_is_sound_passes():
    assert str(kept(DataSetTrial.of(data()))).endswith("(NoOptions()) keeps 17 promises")


class Dense(Split):
    """A class each row of a sample."""

    def fetch_targets(self, indices):
        return super().fetch_targets(indices)[:, None].repeat(1, 2)


def test_targets_are_what_the_facts_say():
    facts = attrs.evolve(FACTS, target_shape=(2,))
    found = found_in(train=Dense(9), test=Data.test, facts=facts, opened=facts)
    assert found == {"samples": "`test`: 6 targets have the shape [6], where the data set declares [6, 2]"}


@pytest.mark.parametrize(
    ("how", "promise", "found"),
    [
        ({"train": TestSplit("20")}, "construction", "the length of its split `train` cannot be had: TypeError"),
        ({"test": TestSplit(0)}, "construction", "its split `test` is empty"),
        (
            {"facts": attrs.evolve(FACTS, classes=4)},
            "construction",
            "its declaration says classes = 4, and its files 3",
        ),
        ({"facts": None}, "construction", "the facts of its declaration are None, not DataFacts"),
        (
            {"train": RowShort(9)},
            "samples",
            "`train`: 6 samples have the shape [5, 2, 3], where the data set declares [6, 2, 3]",
        ),
        ({"train": OneTensor(9)}, "samples", "`train`: fetch returned a Tensor, not a tuple of two tensors"),
        ({"test": Doubles(9)}, "samples", "`test`: samples are float64, where the data set declares float32"),
        ({"train": NotNumbers(9)}, "samples", "`train`: samples are not finite"),
        (
            {"train": ShortTargets(9)},
            "samples",
            "`train`: 6 targets have the shape [5], where the data set declares [6]",
        ),
        (
            {"facts": DataFacts(shape=(3, 2), dtype="float32"), "opened": DataFacts(shape=(3, 2), dtype="float32")},
            "samples",
            "6 samples have the shape [6, 2, 3], where the data set declares [6, 3, 2]",
        ),
        ({"train": FromOne(9)}, "classes", "`train`: targets are 1 .. 3, where the data set declares classes 0 .. 2"),
        ({"train": FloatTargets(9)}, "samples", "targets are float32, where the data set declares int64"),
        ({"train": OfTheBatch(9)}, "rows", "samples of `train` are others when they are fetched one by one"),
        ({"train": ByPosition(9)}, "rows", "samples of `train` are others when they are fetched one by one"),
        ({"train": Augments(9)}, "repeatable", "samples of `train` are others at the second call"),
        ({"train": CountsItsCalls(9)}, "repeatable", "samples of `train` are others at the second call"),
        ({"train": DrawsInVain(9)}, "repeatable", "fetch of `train` moved the global generator of torch"),
        ({"test": Split(9)}, "test samples", "test samples are others in another epoch, or with another seed"),
        (
            {"train": WithPlain(9, Split(9))},
            "test samples",
            "samples of `train.plain` are others in another epoch, or with",
        ),
        ({"train": WithPlain(9, OtherClasses(9))}, "test samples", "`train.plain` gives other targets than `train`"),
        ({"train": OtherTargetsAlone(9)}, "targets alone", "fetch_targets of `train` gives other targets than fetch"),
        ({"train": GivesItsMemory(1)}, "own memory", "a write to fetched samples of `train` changed the data set"),
        ({"train": CannotBePickled(9)}, "workers", "its split `train` cannot be pickled: "),
        ({"train": PicklesOtherwise(9)}, "workers", "a copy of its split `train` gives other samples"),
    ],
)
def test_it_is_caught(how, promise, found):
    assert found in found_in(**how)[promise]


class Numbers(TestSplit):
    """Samples of their number, and targets that are given."""

    def __init__(self, length, first=0, target=lambda index: index % 3):
        super().__init__(length)
        self.first, self.target = first, target

    def sample(self, index, seed, epoch):
        return torch.full((2, 3), float(self.first + index))

    def fetch_targets(self, indices):
        return torch.as_tensor([self.target(int(index)) for index in indices])


def opened(train, test, facts=FACTS):
    class Opened(Data):
        pass

    Opened.train, Opened.test, Opened.facts = train, test, facts
    return DataSetTrial.of(declared(DataSetDeclaration, Opened, facts=lambda _: facts))


@pytest.mark.parametrize(
    ("train", "test", "doubts"),
    [
        (Numbers(20), Numbers(20), ["apart"]),
        (Numbers(20), Numbers(5), ["apart"]),
        (Numbers(20), Numbers(5, first=15), ["apart"]),
        (Numbers(20), Numbers(5, first=20), []),
        (Split(20), TestSplit(8), []),
        (Numbers(20, target=lambda index: 2), Numbers(5, first=20), ["every class"]),
        (Numbers(20, target=lambda index: -100), Numbers(5, first=20), ["every class"]),
        (Numbers(200, target=lambda index: index == 150), Numbers(5, first=200, target=lambda index: 0), []),
    ],
)
def test_what_may_be_meant_of_a_data_set(train, test, doubts):
    assert [one.promise for one in examine(opened(train, test)).doubtful] == doubts


def test_a_regression_may_have_one_value():
    facts = DataFacts(shape=(2, 3), dtype="float32", target_dtype="float32")
    one = Numbers(9, target=lambda index: 1.0)
    report = examine(opened(one, Numbers(9, first=9, target=lambda index: 1.0), facts))
    assert report.doubtful == ()


class Several(Split):
    """Two targets a sample."""

    missing = False

    def fetch_targets(self, indices):
        labels = super().fetch_targets(indices)
        return {"label": labels} | ({} if self.missing else {"box": torch.full((len(indices), 4), 0.5)})


class SeveralInTest(Several):
    augmented = False


class OneIsMissing(SeveralInTest):
    missing = True


def test_several_targets_are_what_the_facts_say_by_their_names():
    facts = DataFacts(
        shape=(2, 3),
        dtype="float32",
        target_shape={"label": (), "box": (4,)},
        target_dtype={"label": "int64", "box": "float32"},
    )
    given = {"train": Several(20), "facts": facts, "opened": facts}
    assert kept(DataSetTrial.of(data(test=SeveralInTest(8), **given))).kept
    missing = 'targets are a dict of ["label"], where the data set declares tensors ["label"], ["box"]'
    assert found_in(test=OneIsMissing(8), **given) == {"samples": f"`test`: {missing}"}
    wide = attrs.evolve(facts, target_shape={"label": (), "box": (5,)})
    wrong = found_in(test=SeveralInTest(8), **{**given, "facts": wide, "opened": wide})
    assert 'targets["box"] have the shape [6, 4], where the data set declares [6, 5]' in wrong["samples"]
    assert "a Tensor of , where" in found_in(test=Data.test, **given)["samples"]


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        (
            {"target_shape": ((), (4,))},
            "have target_dtype = 'int64', without one type for each of target_shape = ((), (4,))",
        ),
        (
            {"target_shape": {"a": ()}, "target_dtype": {"b": "int64"}},
            "have target_dtype = {'b': 'int64'}, without one type for each of target_shape = {'a': ()}",
        ),
        (
            {"target_shape": {"a": (0,)}, "target_dtype": {"a": "int64"}},
            """have target_shape["a"] = (0,), not a tuple of integers above 0""",
        ),
        (
            {"target_shape": ((), ()), "target_dtype": ("int64", "uint8")},
            "have target_dtype[1] = 'uint8', not one of int64, float32, float64",
        ),
        (
            {"target_shape": ((),), "target_dtype": ("int64",), "classes": 3},
            "have classes, which are those of one target, and several targets; leave `classes` out",
        ),
        ({"target_shape": 3}, "have target_shape = 3, not a tuple of integers above 0"),
    ],
)
def test_the_facts_of_several_targets(facts, fault):
    assert facts_fault(DataFacts(shape=(1, 4, 4), **facts)) == fault


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        (
            {"mean": (125.0,), "std": (63.0,)},
            "have mean = (125.0,), not within [0, 1]: samples of uint8 are divided by 255",
        ),
        (
            {"mean": (0.5,), "std": (63.0,)},
            "have std = (63.0,), not within [0, 1]: samples of uint8 are divided by 255",
        ),
        ({"mean": (0.5,), "std": (0.0,)}, "have std = (0.0,), not above 0: samples are divided by it"),
        (
            {"mean": (0.5,), "std": (-0.1,), "dtype": "float32"},
            "have std = (-0.1,), not above 0: samples are divided by it",
        ),
        ({"mean": 0.5, "std": (0.1,)}, "have mean = 0.5, not a tuple of numbers"),
        ({"mean": (120.0,), "std": (60.0,), "dtype": "float32"}, ""),
        ({"mean": (0.0,), "std": (1.0,)}, ""),
    ],
)
def test_the_normalisation_is_of_samples_in_0_to_1(facts, fault):
    assert facts_fault(DataFacts(shape=(1, 4, 4), **facts)) == fault


class Windows(TestSplit):
    """Windows of four tokens; the target of each is the next."""

    def fetch(self, indices, *, seed, epoch):
        tokens = (torch.as_tensor(indices)[:, None] + torch.arange(5)) % 3
        return tokens[:, :-1].clone(), tokens[:, 1:].clone()

    fetch_targets = None


class Text(Data):
    facts = DataFacts(shape=(4,), dtype="int64", classes=3, target_shape=(4,))
    train, test = Windows(20), Windows(8)

    def __init__(self, options):
        del options


class Letters:
    """A codec; `shift` of its tokens makes it wrong."""

    shift = 0

    def __init__(self, options, facts):
        assert facts == Text.facts

    def encode(self, text):
        return ["abc".index(one) + self.shift for one in text]

    def decode(self, tokens):
        return "".join("abc"[token % 3] for token in tokens)


class Shifted(Letters):
    shift = 1


class ShiftedBack(Letters):
    def encode(self, text):
        return [(token + 1) % 3 for token in super().encode(text)]


@pytest.mark.parametrize(
    ("codec", "found"),
    [
        (Letters, {}),
        (Shifted, {"text": "of a sample of `train`, tokens are 1 .. 3, and there are 3 classes"}),
        (ShiftedBack, {"text": "and comes back as"}),
    ],
)
def test_a_text_becomes_tokens_and_the_same_text_again(codec, found, monkeypatch):
    monkeypatch.setattr(sys.modules[HERE], "Codec", codec, raising=False)
    made = declared(DataSetDeclaration, Text, facts=lambda _: Text.facts, codec=f"{HERE}:Codec")
    said = broken(DataSetTrial.of(made))
    assert said.keys() == found.keys()
    assert all(text in said[name] for name, text in found.items())


def test_what_is_no_text_promises_nothing_of_it():
    assert "text" not in [outcome.promise for outcome in examine(DataSetTrial.of(data())).outcomes]


@pytest.mark.parametrize(
    ("completed", "message"),
    [
        (lambda options: None, "`completed` of its declaration returns None, not its options"),
        (lambda options: 1 / 0, "cannot complete its options: ZeroDivisionError"),
    ],
)
def test_options_that_are_not_completed(completed, message):
    trial = DataSetTrial.of(declared(DataSetDeclaration, Data, facts=lambda _: FACTS, completed=completed))
    with pytest.raises(PluginError, match=message):
        completed_options(trial.plugin, trial.options)


def test_options_that_files_suggest():
    made = declared(DataSetDeclaration, Data, facts=lambda _: FACTS, suggested=lambda options: None)
    trial = DataSetTrial.of(made)
    with pytest.raises(PluginError, match="`suggested` of its declaration returns None, not its options"):
        suggested_options(trial.plugin, trial.options)
