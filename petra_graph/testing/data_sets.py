"""A data set's samples are what its facts say, and each follows from its index, the seed and the epoch alone."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from attrs import evolve, field, frozen
from numpy.typing import NDArray
from torch import Tensor

from petra_graph.measure.sample_faults import not_finite, samples_fault, targets_fault
from petra_graph.registry.building import build_plugin, declared_facts
from petra_graph.registry.contracts import DATASETS, DataSet, Declaration, Split
from petra_graph.registry.registry import Plugin
from petra_graph.testing.any_trial import PluginTrial, as_plugin, read_given
from petra_graph.testing.broken_promise import BrokenPromise
from petra_graph.testing.generators import moved_since, seeded, states

_ROWS, _SCANNED = 6, 256
"""Samples of one call, and targets that are looked at."""
Samples = tuple[Tensor, Tensor]


@frozen(kw_only=True)
class DataSetTrial(PluginTrial):
    """A data set with options; it is opened once.

    Attributes:
        plugin: the data set.
        options: an instance of its own options class.
        seed: of the calls that fetch.
    """

    kind: ClassVar[str] = "data set"
    group: ClassVar[str] = DATASETS
    seed: int = 0
    _opened: list[DataSet] = field(factory=list, init=False, repr=False, eq=False)

    @staticmethod
    def of(data_set: Declaration | Plugin, options: Mapping[str, Any] | object = None, **settings: Any) -> DataSetTrial:
        """Make a trial of a declaration, with its `options` table; settings are attributes of the same name."""
        plugin = as_plugin(DATASETS, data_set)
        return DataSetTrial(plugin=plugin, options=read_given(plugin, options), **settings)

    def open(self) -> DataSet:
        """Return the data set, opened at the first call.

        Raises:
            SpecError: its files are missing.
        """
        if not self._opened:
            self._opened.append(build_plugin(self.plugin, self.options))
        return self._opened[0]

    @property
    def splits(self) -> Iterator[tuple[str, Split, NDArray[np.intp]]]:
        """The splits by name, each with some indices, out of order."""
        for name, split in (("train", self.open().train), ("test", self.open().test)):
            yield name, split, np.random.default_rng(self.seed).permutation(len(split))[:_ROWS]

    def fetch(self, split: Split, indices: NDArray[np.intp], *, seed: int | None = None, epoch: int = 0) -> Samples:
        """Load samples."""
        return split.fetch(indices, seed=self.seed if seed is None else seed, epoch=epoch)


def check_data_set_construction(trial: DataSetTrial) -> None:
    """`build` opens a data set with `train`, `test` and `facts`, which are those of the declaration, completed."""
    first, again = (declared_facts(trial.plugin, trial.options) for _ in range(2))
    if first != again:
        raise BrokenPromise(
            "construction", "its declaration gives other facts each time", "make them of the options alone"
        )
    trial.open()


def check_samples(trial: DataSetTrial) -> None:
    """`fetch` returns samples [n, *shape] and targets [n, *target_shape], of the declared types, on the CPU, all finite."""
    facts = trial.open().facts
    for name, split, indices in trial.splits:
        fetched: Any = trial.fetch(split, indices)
        fault = samples_fault(evolve(facts, classes=None), len(indices), fetched)
        wrong = "" if fault else not_finite(fetched)
        if fault or wrong:
            found = f"`{name}`: {fault or f'{wrong} are not finite'}"
            raise BrokenPromise("samples", found, "mend fetch, or the facts of the declaration")


def check_classes(trial: DataSetTrial) -> None:
    """Where the facts have a number of classes, class indices are below it, from 0; -100 is passed over by losses."""
    facts = trial.open().facts
    for name, split, _ in trial.splits:
        some = np.random.default_rng(trial.seed).permutation(len(split))[:_SCANNED]
        fault = targets_fault(facts, len(some), trial.fetch(split, some)[1])
        if fault:
            remedy = "number classes from 0, and count all of them in the facts"
            raise BrokenPromise("classes", f"`{name}`: {fault}", remedy)


def check_rows(trial: DataSetTrial) -> None:
    """A sample is the same alone and among others, in any order, twice in one call: it follows from its own index."""
    for name, split, indices in trial.splits:
        expect_rows(name, split, indices, trial.seed)


def expect_rows(name: str, split: Split, indices: NDArray[np.intp], seed: int = 0) -> None:
    """Fetch samples together, one by one, and in the opposite order; BrokenPromise where they differ."""
    remedy = "make a sample of its index, the seed and the epoch: draw with np.random.default_rng([seed, epoch, index])"
    whole = split.fetch(indices, seed=seed, epoch=0)
    alone = [split.fetch(indices[row : row + 1], seed=seed, epoch=0) for row in range(len(indices))]
    together = tuple(torch.cat([one[part] for one in alone]) for part in range(2))
    if not _equal(whole, together):
        raise BrokenPromise("rows", f"samples of `{name}` are others when they are fetched one by one", remedy)
    twice = split.fetch(np.concatenate([indices[::-1], indices[:1]]), seed=seed, epoch=0)
    expected = tuple(torch.cat([part.flip(0), part[:1]]) for part in whole)
    if not _equal(twice, expected):
        raise BrokenPromise("rows", f"samples of `{name}` are others when their order is reversed", remedy)


def check_same_samples(trial: DataSetTrial) -> None:
    """The same index, seed and epoch give the same bits, whatever was fetched before and generators stand at."""
    for name, split, indices in trial.splits:
        expect_same_samples(name, split, indices, trial.seed)


def expect_same_samples(name: str, split: Split, indices: NDArray[np.intp], seed: int = 0) -> None:
    """Fetch samples twice, with other states of the global generators; BrokenPromise where they differ, or these moved."""
    remedy = "draw with np.random.default_rng([seed, epoch, index]); remember nothing between calls"
    with seeded(1):
        first = split.fetch(indices, seed=seed, epoch=3)
        split.fetch(indices, seed=seed, epoch=4)
    before = states()
    with seeded(2):
        again = split.fetch(indices, seed=seed, epoch=3)
    if not _equal(first, again):
        raise BrokenPromise("repeatable", f"samples of `{name}` are others at the second call", remedy)
    split.fetch(indices, seed=seed, epoch=0)
    moved = moved_since(before)
    if moved:
        found = f"fetch of `{name}` moved the global generator of {' and '.join(moved)}"
        raise BrokenPromise("repeatable", found, remedy)


def check_test_samples(trial: DataSetTrial) -> None:
    """Test samples are the same in each epoch and for each seed, so that evaluations can be compared."""
    *_, (_, split, indices) = trial.splits
    expect_same_tests(split, indices, trial.seed)


def expect_same_tests(split: Split, indices: NDArray[np.intp], seed: int = 0) -> None:
    """Fetch test samples of two epochs and seeds; BrokenPromise where they differ."""
    if not _equal(split.fetch(indices, seed=seed, epoch=0), split.fetch(indices, seed=seed + 1, epoch=5)):
        found = "test samples are others in another epoch, or with another seed"
        raise BrokenPromise("test samples", found, "augment training samples alone")


def check_targets_alone(trial: DataSetTrial) -> None:
    """`fetch_targets`, where a split has it, returns the targets that `fetch` returns."""
    for name, split, indices in trial.splits:
        expect_targets_alone(name, split, indices, trial.seed)


def expect_targets_alone(name: str, split: Split, indices: NDArray[np.intp], seed: int = 0) -> None:
    """Fetch targets alone and with their samples, where a split can do both; BrokenPromise where they differ."""
    alone = getattr(split, "fetch_targets", None)
    if alone is None:
        return
    found, expected = alone(indices), split.fetch(indices, seed=seed, epoch=0)[1]
    if not isinstance(found, Tensor) or found.dtype != expected.dtype or not torch.equal(found, expected):
        message = f"fetch_targets of `{name}` gives other targets than fetch"
        raise BrokenPromise("targets alone", message, "let fetch call fetch_targets, or leave it out")


def check_own_memory(trial: DataSetTrial) -> None:
    """Fetched tensors are the caller's own: what is written to them does not reach the data set."""
    for name, split, indices in trial.splits:
        first = trial.fetch(split, indices)
        kept = tuple(part.clone() for part in first)
        for part in first:
            part.copy_(part + 1 if part.dtype != torch.bool else ~part)
        if not _equal(trial.fetch(split, indices), kept):
            found = f"a write to fetched samples of `{name}` changed the data set"
            raise BrokenPromise("own memory", found, "index with an array, which copies, or return x.clone()")


def check_workers(trial: DataSetTrial) -> None:
    """A split can be pickled, and its copy gives the same samples: loader processes that are not forked read a copy."""
    for name, split, indices in trial.splits:
        try:
            copy = pickle.loads(pickle.dumps(split))  # noqa: S301  what the line itself has pickled
        except Exception as error:
            found = f"its split `{name}` cannot be pickled: {type(error).__name__}: {error}"
            raise BrokenPromise("workers", found, "hold paths and arrays, not open files, lambdas or locks") from error
        if not _equal(trial.fetch(copy, indices, epoch=2), trial.fetch(split, indices, epoch=2)):
            found = f"a copy of its split `{name}` gives other samples"
            raise BrokenPromise("workers", found, "let a sample follow from what is pickled")


def _equal(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> bool:
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))
