"""Training and test splits over any store of equally sized uint8 images.

A store, such as a numpy array or `folders.ImageFiles`, returns the pixels [n, H, W, C] of an array of sample indices,
freshly allocated. A batch is a view [n, C, H, W] of the same memory, which is torch's channels-last format.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from attrs import define, field
from numpy.typing import NDArray

from petra_graph.catalog.datasets.augment import CropAndFlip, Draws
from petra_graph.registry.contracts import DataFacts, DataSet, Split


class PixelStore(Protocol):
    """Equally sized images by index."""

    def __getitem__(self, indices: NDArray[np.intp], /) -> NDArray[np.uint8]:
        """Return a new array [n, H, W, C]."""
        ...


@define(kw_only=True, eq=False)
class LabelledSplit:
    """The targets of a split."""

    targets: NDArray[np.int64]
    """[N]"""

    def __len__(self) -> int:
        return len(self.targets)

    def fetch_targets(self, indices: NDArray[np.intp]) -> torch.Tensor:
        """Load the targets alone: int64 [n]."""
        return torch.from_numpy(self.targets[indices])


@define(kw_only=True, eq=False)
class ImageSplit(LabelledSplit):
    """Images of a store with their targets; a training split has an augmentation."""

    pixels: PixelStore
    augment: CropAndFlip | None = None
    _last: tuple[tuple[int, int], Draws] | None = field(default=None, init=False)

    def fetch(self, indices: NDArray[np.intp], *, seed: int, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Load samples: uint8 images [n, C, H, W] in channels-last memory, and int64 targets [n]."""
        images = self.pixels[indices]
        if self.augment:
            images = self.augment(images, indices, self._draws(self.augment, (seed, epoch)))
        return as_images(images), self.fetch_targets(indices)

    def _draws(self, augment: CropAndFlip, at: tuple[int, int]) -> Draws:
        """Return the table of (seed, epoch); the split keeps the last table, since an epoch fetches many times."""
        if self._last is None or self._last[0] != at:
            self._last = at, augment.draws(len(self), seed=at[0], epoch=at[1])
        return self._last[1]


@define(kw_only=True, eq=False)
class OpenedDataSet:
    """An opened data set: its two splits and its facts."""

    train: Split
    test: Split
    facts: DataFacts


def as_images(pixels: NDArray[np.uint8]) -> torch.Tensor:
    """Return a view of pixels [n, H, W, C]: a tensor [n, C, H, W] in channels-last memory format."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def image_data_set(
    train: tuple[PixelStore, NDArray[np.int64]],
    test: tuple[PixelStore, NDArray[np.int64]],
    *,
    facts: DataFacts,
    crop_padding: int = 0,
    flip: bool = False,
) -> DataSet:
    """Return the data set of (pixels, targets) of both splits; only the training split is augmented."""
    augment = CropAndFlip(padding=crop_padding, flip=flip) if crop_padding or flip else None
    return OpenedDataSet(
        train=ImageSplit(pixels=train[0], targets=train[1], augment=augment),
        test=ImageSplit(pixels=test[0], targets=test[1]),
        facts=facts,
    )
