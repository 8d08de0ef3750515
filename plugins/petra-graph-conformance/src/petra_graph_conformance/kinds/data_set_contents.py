"""What the samples of a data set are: apart from the test's, of every class, of the declared range, as many as it says.

All of these are doubts: a data set of its own kind may mean them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from petra_graph.kinds.data_facts import IGNORED
from petra_graph.kinds.data_set import Split
from petra_graph_conformance.broken_promise import BrokenPromise, all_equal
from petra_graph_conformance.kinds.data_set_trial import SCANNED, DataSetTrial, loaded

_HASHED, _HASHED_BYTES = 20_000, 2**26
"""Samples of both splits, and bytes of them, up to which all are compared; of larger ones, `_COMPARED` are."""
_COMPARED = 4
_AT_ONCE = 64
"""Samples that are fetched together."""
_SHARED = 0.1
"""The share of test samples that may be training samples as well: published data sets have some twice."""
_OFTEN = 20
"""How often each class would be seen among the targets that are looked at before one that is missing is a doubt."""
_CENTRE, _SPREAD = 2.0, (0.2, 5.0)
"""The mean of normalised samples, and their deviation, are within these."""


def check_apart(trial: DataSetTrial) -> None:
    """Test samples are not those of the training, in any order: the test would measure memory.

    Of a large data set, a few are compared, in the same places and at the end. Training samples that are augmented are others.
    """
    train, test = trial.open().train, trial.open().test
    some = np.unique(np.linspace(0, min(len(train), len(test)) - 1, _COMPARED).astype(np.intp))
    samples, *_ = trial.fetch(test, some)
    if len(torch.unique(samples.flatten(1), dim=0)) < len(some):  # alike among themselves
        return
    remedy = "keep samples for the test that the training does not see"
    count = len(train) + len(test)
    if count <= _HASHED and count * samples[0].nbytes <= _HASHED_BYTES:
        of_train, of_test = (
            [hash(one.numpy().tobytes()) for part in _parts(split) for one in trial.fetch(split, part)[0]]
            for split in (train, test)
        )
        seen = set(of_train)
        shared = sum(one in seen for one in of_test)
        if shared > _SHARED * len(of_test) and len(set(of_test)) > len(of_test) // 2:
            found = f"{shared:,} of {len(of_test):,} test samples are training samples"
            raise BrokenPromise("apart", found, remedy)
        return
    for first in {0, max(0, len(train) - len(test))}:
        if torch.equal(trial.fetch(train, some + first)[0], samples):
            found = f"the test samples {', '.join(map(str, some))} are the training samples {', '.join(map(str, some + first))}"
            raise BrokenPromise("apart", found, remedy)


def _parts(split: Split) -> Iterator[NDArray[np.intp]]:
    for first in range(0, len(split), _AT_ONCE):
        yield np.arange(first, min(first + _AT_ONCE, len(split)))


def check_every_class(trial: DataSetTrial) -> None:
    """Where a sample has one class, training samples are of all of them: at least of two, and of each that should be seen often."""
    facts, train = trial.open().facts, trial.open().train
    if facts.classes is None or facts.classes == 1 or facts.several_targets:
        return
    some = np.random.default_rng(trial.seed).permutation(len(train))[: max(SCANNED, _OFTEN * facts.classes)]
    alone = getattr(train, "fetch_targets", None)
    if alone is None:
        some = some[:SCANNED]
    seen: set[int] = set()
    for first in range(0, len(some), _AT_ONCE):
        indices = some[first : first + _AT_ONCE]
        targets: Tensor = trial.fetch(train, indices)[1] if alone is None else alone(indices)
        seen |= set(torch.unique(targets).tolist())
        if len(seen - {IGNORED}) == facts.classes:
            return
    seen -= {IGNORED}
    remedy = "see how fetch reads the targets, and how many classes the facts say"
    count = f"{len(some)} training samples, drawn at random,"
    if len(seen) <= 1:
        found = f"{count} have the target {min(seen, default=IGNORED)} alone, of {facts.classes} classes"
        raise BrokenPromise("every class", found, remedy)
    missing = sorted(set(range(facts.classes)) - seen)
    if not facts.target_shape and len(some) >= _OFTEN * facts.classes and missing:
        named = ", ".join(map(str, missing[:_COMPARED])) + (", .." if len(missing) > _COMPARED else "")
        raise BrokenPromise("every class", f"{count} have no class {named} of {facts.classes}", remedy)


def check_last_sample(trial: DataSetTrial) -> None:
    """The last sample is one of its own: an index that wraps around, or stays at the end, hides a length that is too large."""
    for name, split in (("train", trial.open().train), ("test", trial.open().test)):
        last = len(split) - 1
        if last < _COMPARED or (name == "train" and trial.stream is not None):
            continue
        at = np.array([last, last - 1, 0, 1])
        samples = [loaded(split, at[one : one + 1], trial.seed, 0) for one in range(len(at))]
        if torch.equal(samples[2][0], samples[3][0]):  # alike among themselves
            continue
        for other in (1, 2):
            if all_equal(samples[0], samples[other]):
                found = f"the last sample of `{name}`, {last}, is sample {at[other]} once more"
                raise BrokenPromise("last sample", found, "let len() be the number of samples that there are")


def check_pixels(trial: DataSetTrial) -> None:
    """Samples, less the declared mean and divided by the declared deviation, are around 0, and as far from it as 1."""
    facts = trial.open().facts
    if facts.mean is None or facts.std is None:
        return
    train = trial.open().train
    samples = trial.fetch(train, np.random.default_rng(trial.seed).permutation(len(train))[:_AT_ONCE])[0]
    values = samples.double() / (255 if samples.dtype == torch.uint8 else 1)
    mean, std = (torch.tensor(one, dtype=torch.float64).reshape(-1, 1, 1) for one in (facts.mean, facts.std))
    values = (values - mean) / std
    centre, spread = float(values.mean()), float(values.std())
    if abs(centre) > _CENTRE or not _SPREAD[0] < spread < _SPREAD[1]:
        found = (
            f"{len(samples)} samples, normalised by the declared mean and std, have a mean of {centre:.3g} and a deviation of "
            f"{spread:.3g}; as fetched, they are {float(samples.min()):.3g} .. {float(samples.max()):.3g}"
        )
        remedy = (
            "give mean and std for samples in [0, 1], and fetch uint8, or floats in [0, 1], that are not normalised yet"
        )
        raise BrokenPromise("pixels", found, remedy)


def check_epochs(trial: DataSetTrial) -> None:
    """Training samples that are augmented, and so are others for another seed, are others in another epoch as well."""
    _, train, indices = next(iter(trial.splits))
    first, of_seed, of_epoch = (
        loaded(train, indices, trial.seed + seed, epoch)[0] for seed, epoch in ((0, 0), (1, 0), (0, 1))
    )
    if not torch.equal(first, of_seed) and torch.equal(first, of_epoch):
        found = "training samples are augmented by the seed, and are the same in every epoch"
        raise BrokenPromise("epochs", found, "draw with np.random.default_rng([seed, epoch, index])")
