"""Data sets without files: scikit-learn's handwritten digits, or noise.

Decision: a permutation that does not depend on the run's seed chooses the test samples of the digits, so accuracies of
different runs are over the same samples.

Decision: a sample of noise is a window of one block of random values, which starts at a position given by the sample's
index. Drawing each sample by itself would cost a benchmark more than a small network does; the price is that windows overlap.
"""

from __future__ import annotations

from importlib.util import find_spec
from math import prod
from pathlib import Path

import numpy as np
import torch
from attrs import frozen
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from petra_graph.catalog.datasets.declared_datasets import DIGITS, RANDOM, DigitsOptions, RandomOptions
from petra_graph.catalog.datasets.splits import OpenedDataSet, image_data_set, stratified
from petra_graph.errors import SpecError
from petra_graph.plugins import DataSet

_PERMUTATION = 1797
"""Seed of the permutation that chooses the test samples."""
_LARGEST = 16
"""The largest value in scikit-learn's images."""


def digits(options: DigitsOptions) -> DataSet:
    """Open scikit-learn's digits (Alpaydin and Kaynak 1998, UCI repository): uint8 [1, 8, 8], 10 classes.

    Raises:
        SpecError: scikit-learn is not installed.
    """
    pictures, targets = _digits()
    images = np.rint(pictures * (255 / _LARGEST)).astype(np.uint8)[..., np.newaxis]
    test = stratified(targets, share=options.test_share, seed=_PERMUTATION)
    return image_data_set(
        (images[~test], targets[~test]),
        (images[test], targets[test]),
        facts=DIGITS.facts(options),
        crop_padding=options.crop_padding,
    )


def _digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the images [1797, 8, 8] and their classes, as `sklearn.datasets.load_digits` does."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        message = "data set 'digits' needs scikit-learn, which is not installed"
        hint = "pip install 'petra-graph[digits]'"
        raise SpecError(message, hint)
    file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():  # Importing sklearn.datasets takes a third of the time before the training.
        table = np.loadtxt(file, delimiter=",")
        return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.images, bunch.target.astype(np.int64)


_STARTS = 65_521
"""The number of positions at which a window may start (a prime)."""
_STRIDE = 40_503
"""The distance from one index to the next; with a prime, 65,521 samples in a row differ."""
_IMAGE = 3
"""The dimensions of an image without the batch: channels, height, width."""


@frozen(kw_only=True, eq=False)
class NoiseSplit:
    """One split: windows [n, *shape] of `block`."""

    block: NDArray[np.generic]
    options: RandomOptions
    samples: int
    first: int
    """The index of the split's first sample within the data set."""

    def __len__(self) -> int:
        return self.samples

    @property
    def plain(self) -> NoiseSplit:
        return self

    def fetch(self, indices: NDArray[np.intp], *, seed: int, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Load samples [n, *shape], images in channels-last memory, and targets; the epoch does not change them."""
        number = np.asarray(indices, np.int64) + self.first
        shape = self.options.shape
        windows = sliding_window_view(self.block, prod(shape))
        flat = torch.from_numpy(windows[number * _STRIDE % _STARTS])
        targets = self.fetch_targets(indices)
        if len(shape) == _IMAGE:
            channels, height, width = shape
            return flat.view(-1, height, width, channels).permute(0, 3, 1, 2), targets
        return flat.view(-1, *shape), targets

    def fetch_targets(self, indices: NDArray[np.intp]) -> torch.Tensor:
        """Load the targets alone: int64 [n, *target_shape]."""
        number = (np.asarray(indices, np.int64) + self.first) * _STRIDE
        place = np.arange(prod(self.options.target_shape)).reshape(self.options.target_shape)
        return torch.from_numpy((number.reshape(-1, *(1,) * place.ndim) + place) % 65_537 % self.options.classes)


def noise(options: RandomOptions) -> DataSet:
    """Return a data set of random samples of any shape and dtype, with random targets."""
    generator = np.random.default_rng(0)
    size = prod(options.shape) + _STARTS - 1
    block: NDArray[np.generic]
    if options.dtype in {"float32", "float64"}:
        block = generator.standard_normal(size).astype(options.dtype)
    else:
        block = generator.integers(0, options.levels, size).astype(options.dtype)

    return OpenedDataSet(
        train=NoiseSplit(block=block, options=options, samples=options.train, first=0),
        test=NoiseSplit(block=block, options=options, samples=options.test, first=options.train),
        facts=RANDOM.facts(options),
    )
