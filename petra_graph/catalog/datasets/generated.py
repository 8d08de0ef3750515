"""Data sets without files: scikit-learn's handwritten digits, or noise."""

from __future__ import annotations

from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from attrs import frozen
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from petra_graph.catalog.datasets.splits import ImageSplit, stratified
from petra_graph.errors import SpecError
from petra_graph.plugins import AtLeast, DataFacts, GreaterThan, Length, LessThan

_PERMUTATION = 1797
"""Seed of the permutation that chooses the test samples: not the run's, so that accuracies are over the same samples."""
TestShare = Annotated[float, "share of each class that is kept for the test", GreaterThan(0), LessThan(1)]
Padding = Annotated[int, "black border, out of which images are cropped at random, pixels", AtLeast(0)]
Side = Annotated[int, AtLeast(1)]


class Digits:
    """Handwritten digits of scikit-learn: 1,797 grey images 1x8x8 of 10 classes, real and offline."""

    facts = DataFacts(shape=(1, 8, 8), classes=10, mean=(0.3053,), std=(0.3760,))

    def __init__(self, *, test_share: TestShare = 0.2, crop_padding: Padding = 0) -> None:
        found = find_spec("sklearn")
        if found is None or found.origin is None:
            raise SpecError("data set 'digits' needs scikit-learn: pip install 'petra-graph[digits]'")
        # What `sklearn.datasets.load_digits` reads: importing that takes a third of the time before the training.
        table = np.loadtxt(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
        pixels, targets = table[:, :-1].reshape(-1, 8, 8, 1), table[:, -1].astype(np.int64)
        images = np.rint(pixels * (255 / 16)).astype(np.uint8)  # 16 is the largest value
        test = stratified(targets, share=test_share, seed=_PERMUTATION)
        self.train = ImageSplit(images[~test], targets[~test], crop_padding=crop_padding)
        self.test = ImageSplit(images[test], targets[test])

    @staticmethod
    def training_samples(*, test_share: float) -> int | None:
        return 1_438 if test_share == 0.2 else None  # noqa: PLR2004  the default


_STARTS = 65_521
"""The number of positions at which a window may start (a prime)."""
_STRIDE = 40_503
"""The distance from one index to the next; with a prime, 65,521 samples in a row differ."""


@frozen(kw_only=True, eq=False)
class NoiseSplit:
    """One split: windows [n, *shape] of `block`, which overlap; drawing each sample would cost a benchmark more than a small network does."""

    block: NDArray[np.generic]
    facts: DataFacts
    samples: int
    first: int
    """The index of the split's first sample within the data set."""

    def __len__(self) -> int:
        return self.samples

    @property
    def plain(self) -> NoiseSplit:
        return self

    def fetch(self, indices: NDArray[np.intp], *, seed: int, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        number, shape = np.asarray(indices, np.int64) + self.first, self.facts.shape
        flat = torch.from_numpy(sliding_window_view(self.block, prod(shape))[number * _STRIDE % _STARTS])
        targets = self.fetch_targets(indices)
        if len(shape) == 3:  # noqa: PLR2004  an image, in channels-last memory
            return flat.view(-1, *shape[1:], shape[0]).permute(0, 3, 1, 2), targets
        return flat.view(-1, *shape), targets

    def fetch_targets(self, indices: NDArray[np.intp]) -> torch.Tensor:
        number, shape = (np.asarray(indices, np.int64) + self.first) * _STRIDE, self.facts.target_shape
        place = np.arange(prod(shape)).reshape(shape)
        return torch.from_numpy((number.reshape(-1, *(1,) * place.ndim) + place) % 65_537 % (self.facts.classes or 1))


class Noise:
    """Noise with random targets, for benchmarks and dry runs: nothing can be learnt from it."""

    def __init__(
        self,
        *,
        shape: Annotated[tuple[Side, ...], "shape of one sample", Length(at_least=1)] = (3, 32, 32),
        dtype: Annotated[Literal["uint8", "int64", "float32", "float64"], "floats are standard normal"] = "uint8",
        levels: Annotated[int, "integer samples lie in 0 .. levels - 1", AtLeast(1)] = 256,
        classes: Annotated[int, "targets lie in 0 .. classes - 1", AtLeast(1)] = 10,
        target_shape: Annotated[tuple[Side, ...], "shape of one target: [8] for a class each token of eight"] = (),
        train: Annotated[int, "training samples", AtLeast(1)] = 4096,
        test: Annotated[int, "test samples", AtLeast(1)] = 512,
    ) -> None:
        generator, size = np.random.default_rng(0), prod(shape) + _STARTS - 1
        real = dtype in {"float32", "float64"}
        drawn = generator.standard_normal(size) if real else generator.integers(0, levels, size)
        facts = self.facts(shape=shape, dtype=dtype, classes=classes, target_shape=target_shape)
        self.train = NoiseSplit(block=drawn.astype(dtype), facts=facts, samples=train, first=0)
        self.test = NoiseSplit(block=self.train.block, facts=facts, samples=test, first=train)

    @staticmethod
    def facts(*, shape: tuple[int, ...], dtype: str, classes: int, target_shape: tuple[int, ...]) -> DataFacts:
        return DataFacts(shape=shape, dtype=dtype, classes=classes, target_shape=target_shape)

    @staticmethod
    def training_samples(*, train: int) -> int:
        return train
