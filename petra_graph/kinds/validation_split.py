"""The validation samples of a run: a split of the data set's own, or a share of its training samples.

    plain                 of a training split: the same samples without augmentation (itself, if it has none); the share is drawn among them
    set_apart(share)      of a training split whose samples overlap, as windows of a text do: returns the splits (training, validation)

Decision: which samples are drawn depends on the seed and the number of samples alone. So they are the same in every process, for every
batch, and after a resume.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import evolve
from numpy.typing import NDArray

from petra_graph.errors import PluginError, Problem, SpecError, suggestion
from petra_graph.kinds.author_code import author_code
from petra_graph.kinds.data_set import DataSet, Split, count_of_share, split_faults

PATH = ("data", "validation")
_DRAW = (0, 3)
"""Separates this draw from others of the same seed: those of an epoch's order and of augmentations begin with the epoch."""
_AN_EXAMPLE = "or give a share of the training samples, as in 0.1"


def own_split(name: str, data: DataSet, validation: str) -> Split:
    """Return a split of the data set's own; `name` is the data set's, as messages say it.

    Raises:
        SpecError: it has no such split.
        PluginError: what has this name is not a split.
    """
    split: Split | None = getattr(data, validation, None)
    if split is None:
        own = [one for one in dir(data) if not one.startswith("_") and hasattr(getattr(data, one), "fetch")]
        hint = f"{suggestion(validation, set(own) - {'train', 'test'})}; {_AN_EXAMPLE}"
        raise SpecError(Problem(message=f'{name} has no split "{validation}"', hint=hint, path=PATH))
    for fault in split_faults(validation, split):
        raise PluginError(Problem(message=f"{name} is broken: {fault}", path=PATH))
    return split


def draw_share(samples: int, share: float, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows of the training samples and those of the validation samples, each in their order.

    Raises:
        SpecError: there would be no validation sample.
    """
    count = count_of_share(samples, share)
    if not count:
        message = f"a share of {share:g} of {samples:,} training samples is no sample"
        raise SpecError(Problem(message=message, hint="give a larger share", path=PATH))
    drawn = np.random.default_rng([seed, *_DRAW]).permutation(samples)
    return np.sort(drawn[count:]), np.sort(drawn[:count])


def plain_view(name: str, train: Split) -> Split:
    """Return a training split without augmentation.

    Raises:
        SpecError: the data set has no such view.
        PluginError: its code failed, or the view has other samples.
    """
    with author_code(f"{name} has no view of its training samples without augmentation"):
        plain: Any = getattr(train, "plain", None)
    if plain is None:
        message = f"{name} cannot give a share of its training samples: it has no view of them without augmentation"
        hint = (
            "give its training split the attribute `plain`, the same samples without augmentation (itself, if it has none), or name a "
            "split of the data set's own"
        )
        raise SpecError(Problem(message=message, hint=hint, path=PATH))
    faults = [*split_faults("train.plain", plain)]
    if not faults and len(plain) != len(train):
        faults = [f"its split `train` has {len(train):,} samples, and `train.plain` {len(plain):,}"]
    for fault in faults:
        raise PluginError(Problem(message=f"{name} is broken: {fault}", path=PATH))
    return plain  # type: ignore[no-any-return]


def set_apart(name: str, train: Split, share: float) -> tuple[Split, Split] | None:
    """Return the parts into which a training split sets itself apart; None: its samples are drawn.

    Raises:
        SpecError: it has too few samples for that.
        PluginError: its code failed, or returned something else than two splits.
    """
    apart = getattr(train, "set_apart", None)
    if apart is None:
        return None
    try:
        with author_code(f"{name} cannot set validation samples apart"):
            parts = apart(share)
    except SpecError as error:
        raise SpecError([_located(one) for one in error.problems]) from error
    if not isinstance(parts, tuple) or len(parts) != 2:  # noqa: PLR2004
        raise PluginError(Problem(message=f"{name} is broken: its `set_apart` returns no pair of splits", path=PATH))
    for part, split in zip(("training", "validation"), parts, strict=True):
        for fault in split_faults(f"{part} part", split):
            raise PluginError(Problem(message=f"{name} is broken: {fault}", path=PATH))
    return parts


def _located(problem: Problem) -> Problem:
    """Return a problem at the option that it names, or at the share."""
    return evolve(problem, path=("data", "options", *problem.path) if problem.path else PATH)
