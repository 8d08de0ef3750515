"""A data set: its samples are what its facts say, and each follows from its index, the seed and the epoch alone."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import numpy as np
import torch
from attrs import evolve
from numpy.typing import NDArray

from petra_graph.errors import SpecError, shown
from petra_graph.kinds.checked_samples import not_finite, samples_fault, targets_fault
from petra_graph.kinds.data_set import DATA_SET, DataSetDeclaration, Split
from petra_graph.kinds.declared_data import codec_of, declared_facts
from petra_graph.kinds.generators import seeded
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.tensor_trees import leaves, named_leaves
from petra_graph.training.data.stream_split import StreamSplit
from petra_graph_conformance.broken_promise import BrokenPromise, all_equal
from petra_graph_conformance.declaration_promises import DECLARATION, PACKAGE
from petra_graph_conformance.kinds.data_set_contents import (
    check_apart,
    check_epochs,
    check_every_class,
    check_last_sample,
    check_pixels,
)
from petra_graph_conformance.kinds.data_set_trial import SCANNED, DataSetTrial, Samples, loaded
from petra_graph_conformance.moved_generators import moved_since, states
from petra_graph_conformance.promise import KindChecks, Promise

_IN_ORDER, _PASS = 6, 32
"""Samples that are fetched together in their order, and those of a stream that are read twice."""


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
    for name, split, indices in trial.splits:
        fetched: Any = split.fetch(indices, seed=trial.seed, epoch=0)
        facts = evolve(trial.facts_of(split, indices), classes=None)
        fault = samples_fault(facts, len(indices), fetched)
        wrong = "" if fault else not_finite(fetched)
        if fault or wrong:
            found = f"`{name}`: {fault or f'{wrong} are not finite'}"
            raise BrokenPromise("samples", found, "mend fetch, or the facts of the declaration")


def check_classes(trial: DataSetTrial) -> None:
    """Where the facts have a number of classes, class indices are below it, from 0; -100 is passed over by losses."""
    for name, split, _ in trial.splits:
        some = np.random.default_rng(trial.seed).permutation(len(split))[:SCANNED]
        fault = targets_fault(trial.facts_of(split, some), len(some), split.fetch(some, seed=trial.seed, epoch=0)[1])
        if fault:
            remedy = "number classes from 0, and count all of them in the facts"
            raise BrokenPromise("classes", f"`{name}`: {fault}", remedy)


def check_passes(trial: DataSetTrial) -> None:
    """A stream gives the same samples whenever a pass is iterated with the same seed: it begins anew, and remembers nothing."""
    stream = trial.stream
    if stream is None:
        return
    first, again = (loaded(StreamSplit(stream, _PASS), np.arange(_PASS), trial.seed, 0) for _ in range(2))
    if not all_equal(first, again):
        found = f"the first {_PASS} samples of the training stream are others when it is iterated again"
        remedy = "let each iteration begin anew, and draw from the global generators, which are seeded for each sample, or from one that it makes"
        raise BrokenPromise("passes", found, remedy)


def check_rows(trial: DataSetTrial) -> None:
    """A sample is the same alone and among others, in any order, twice in one call: it follows from its own index."""
    for name, split, indices in trial.splits:
        _expect_rows(trial, name, split, indices)


def _expect_rows(trial: DataSetTrial, name: str, split: Split, indices: NDArray[np.intp]) -> None:
    remedy = "make a sample of its index, the seed and the epoch: draw with np.random.default_rng([seed, epoch, index])"
    whole = trial.fetch_rows(split, indices)
    alone = [trial.fetch_rows(split, indices[row : row + 1]) for row in range(len(indices))]
    together = tuple(map(torch.cat, zip(*alone, strict=True)))
    if not all_equal(whole, together):
        raise BrokenPromise("rows", f"samples of `{name}` are others when they are fetched one by one", remedy)
    twice = trial.fetch_rows(split, np.concatenate([indices[::-1], indices[:1]]))
    expected = tuple(torch.cat([part.flip(0), part[:1]]) for part in whole)
    if not all_equal(twice, expected):
        raise BrokenPromise("rows", f"samples of `{name}` are others when their order is reversed", remedy)


def check_same_samples(trial: DataSetTrial) -> None:
    """The same index, seed and epoch give the same bits, whatever was fetched before and generators stand at."""
    for name, split, indices in trial.splits:
        _expect_same_samples(name, split, indices, trial.seed)


def _expect_same_samples(name: str, split: Split, indices: NDArray[np.intp], seed: int) -> None:
    remedy = "draw with np.random.default_rng([seed, epoch, index]); remember nothing between calls"
    with seeded(1):
        first = loaded(split, indices, seed, 3)
        split.fetch(indices, seed=seed, epoch=4)
    before = states()
    with seeded(2):
        again = loaded(split, indices, seed, 3)
    if not all_equal(first, again):
        raise BrokenPromise("repeatable", f"samples of `{name}` are others at the second call", remedy)
    split.fetch(indices, seed=seed, epoch=0)
    moved = moved_since(before)
    if moved:
        found = f"fetch of `{name}` moved the global generator of {' and '.join(moved)}"
        raise BrokenPromise("repeatable", found, remedy)
    in_order = np.arange(min(_IN_ORDER, len(split)))
    if not all_equal(*(_copied(loaded(split, in_order, seed, 3)) for _ in range(2))):
        found = f"samples 0 .. {len(in_order) - 1} of `{name}`, fetched in their order as evaluations do, are others at the second call"
        raise BrokenPromise("repeatable", found, "write to copies alone: a slice of an array is the array's own memory")


def _copied(samples: Samples) -> Samples:
    return tuple(one.clone() for one in samples)


def check_test_samples(trial: DataSetTrial) -> None:
    """Test samples are the same in each epoch and for each seed, so that evaluations can be compared; so is `plain` of the training."""
    *_, (_, split, indices) = trial.splits
    if not all_equal(loaded(split, indices, trial.seed, 0), loaded(split, indices, trial.seed + 1, 5)):
        found = "test samples are others in another epoch, or with another seed"
        raise BrokenPromise("test samples", found, "augment training samples alone")
    (_, train, indices), *_ = trial.splits
    with suppress(SpecError):  # of a data set that has no such view
        plain = getattr(train, "plain", None)
        if plain is not None:
            _expect_plain(train, plain, indices, trial.seed)


def _expect_plain(train: Split, plain: Split, indices: NDArray[np.intp], seed: int) -> None:
    samples, *targets = loaded(plain, indices, seed, 0)
    if not all_equal((samples, *targets), loaded(plain, indices, seed + 1, 5)):
        found = "samples of `train.plain` are others in another epoch, or with another seed"
        raise BrokenPromise("test samples", found, "leave every augmentation out of `plain`")
    if not all_equal(tuple(targets), loaded(train, indices, seed, 0)[1:]):
        found = "`train.plain` gives other targets than `train`"
        raise BrokenPromise("test samples", found, "let both have the same samples in the same order")


def check_targets_alone(trial: DataSetTrial) -> None:
    """`fetch_targets`, where a split has it, returns the targets that `fetch` returns."""
    for name, split, indices in trial.splits:
        _expect_targets_alone(name, split, indices, trial.seed)


def _expect_targets_alone(name: str, split: Split, indices: NDArray[np.intp], seed: int) -> None:
    alone = getattr(split, "fetch_targets", None)
    if alone is None:
        return
    found, expected = (dict(named_leaves(one)) for one in (alone(indices), split.fetch(indices, seed=seed, epoch=0)[1]))
    if found.keys() != expected.keys() or not all(
        isinstance(found[at], torch.Tensor) and found[at].dtype == one.dtype and torch.equal(found[at], one)
        for at, one in expected.items()
    ):
        message = f"fetch_targets of `{name}` gives other targets than fetch"
        raise BrokenPromise("targets alone", message, "let fetch call fetch_targets, or leave it out")


def check_own_memory(trial: DataSetTrial) -> None:
    """Fetched tensors are the caller's own: what is written to them does not reach the data set."""
    for name, split, indices in trial.splits:
        kept = _copied(trial.fetch(split, indices))
        for part in leaves(split.fetch(indices, seed=trial.seed, epoch=0)):
            with suppress(RuntimeError):  # of an expanded tensor, to which nobody can write
                part.copy_(part + 1 if part.dtype != torch.bool else ~part)
        if not all_equal(trial.fetch(split, indices), kept):
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
        if not all_equal(trial.fetch(copy, indices, epoch=2), trial.fetch(split, indices, epoch=2)):
            found = f"a copy of its split `{name}` gives other samples"
            raise BrokenPromise("workers", found, "let a sample follow from what is pickled")


def _is_text(trial: DataSetTrial) -> bool:
    return cast(DataSetDeclaration, trial.plugin.declaration).codec is not None


def check_text(trial: DataSetTrial) -> None:
    """A text that tokens were decoded to becomes tokens below the number of classes, and these the same text again."""
    facts = trial.open().facts
    if facts.several_inputs:
        return
    codec = codec_of(trial.plugin, trial.options, facts)
    for name, split, indices in trial.splits:
        for sample in trial.fetch(split, indices)[0].tolist():
            text = codec.decode(sample)
            tokens = list(codec.encode(text))
            if any(not 0 <= token < (facts.classes or 0) for token in tokens):
                found = f"of a sample of `{name}`, tokens are {min(tokens)} .. {max(tokens)}, and there are {facts.classes} classes"
            elif codec.decode(tokens) != text:
                found = f"a sample of `{name}` is {shown(text)}, and comes back as {shown(codec.decode(tokens))}"
            else:
                continue
            raise BrokenPromise("text", found, "let encode and decode of the codec use one table of tokens")


def _trials(plugin: Plugin, options: Any, _: Mapping[str, Any]) -> Sequence[DataSetTrial]:
    trial = DataSetTrial.of(plugin, options)
    trial.open()
    return [trial]


DATA_SET_CHECKS = KindChecks(
    kind=DATA_SET,
    promises=(
        DECLARATION,
        PACKAGE,
        Promise("construction", check_data_set_construction, foundation=True),
        Promise("passes", check_passes, foundation=True),
        Promise("samples", check_samples, foundation=True),
        Promise("classes", check_classes),
        Promise("rows", check_rows),
        Promise("repeatable", check_same_samples),
        Promise("test samples", check_test_samples),
        Promise("apart", check_apart, doubt=True),
        Promise("every class", check_every_class, doubt=True),
        Promise("last sample", check_last_sample, doubt=True),
        Promise("pixels", check_pixels, doubt=True),
        Promise("epochs", check_epochs, doubt=True),
        Promise("targets alone", check_targets_alone),
        Promise("text", check_text, applies=_is_text),
        Promise("own memory", check_own_memory),
        Promise("workers", check_workers, run=False),
    ),
    trial=DataSetTrial,
    trials=_trials,
)
