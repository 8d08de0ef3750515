"""The handwritten digits that scikit-learn installs: real images for tests and first runs, without a download.

Decision: a permutation that does not depend on the run's seed chooses the test samples, so accuracies of different runs
are over the same samples.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from petra_graph.catalog.datasets.declared import DIGITS, DigitsOptions
from petra_graph.catalog.datasets.splits import image_data_set
from petra_graph.errors import Problem, SpecError
from petra_graph.registry.contracts import DataSet

_PERMUTATION = 1797
"""Seed of the permutation that chooses the test samples."""
_LARGEST = 16
"""The largest value in scikit-learn's images."""


def digits(options: DigitsOptions) -> DataSet:
    """Open scikit-learn's digits (Alpaydin and Kaynak 1998, UCI repository): uint8 [1, 8, 8], 10 classes.

    Raises:
        SpecError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        message = "data set 'digits' needs scikit-learn, which is not installed"
        hint = "pip install 'petra-graph[digits]'"
        raise SpecError(Problem(message=message, hint=hint, path=("data", "name"))) from None
    bunch = load_digits()
    images = np.rint(bunch.images * (255 / _LARGEST)).astype(np.uint8)[..., np.newaxis]
    targets = bunch.target.astype(np.int64)
    test = stratified(targets, share=options.test_share, seed=_PERMUTATION)
    return image_data_set(
        (images[~test], targets[~test]),
        (images[test], targets[test]),
        facts=DIGITS.facts(options),
        crop_padding=options.crop_padding,
    )


def stratified(targets: NDArray[np.int64], *, share: float, seed: int) -> NDArray[np.bool_]:
    """Return a mask [N] that marks `share` of each class, at least one sample, chosen by `seed`."""
    order = np.random.default_rng(seed).permutation(len(targets))
    chosen = np.zeros(len(targets), np.bool_)
    for label in np.unique(targets):
        members = order[targets[order] == label]
        chosen[members[: max(1, round(share * len(members)))]] = True
    return chosen
