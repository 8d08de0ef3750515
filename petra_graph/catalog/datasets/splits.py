"""Splits over any store of equally sized uint8 images, whose training batches are cropped or flipped at random.

A store, such as a numpy array, returns the pixels [n, H, W, C] of an array of sample indices, freshly allocated. A batch is a view
[n, C, H, W] of the same memory, which is torch's channels-last format. Data sets of other distributions may use these splits, too, as
those of petra-graph-vision do.

Decision: the crops and flips of an epoch are drawn at once, as a table indexed by sample. So the augmentation of a
sample depends on (seed, epoch, index) alone, not on the order of fetches or on the process; and a batch costs three
numpy calls instead of a loop over images.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from attrs import define, evolve, field, frozen
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

# n samples of a call, N samples of a split, H height, W width, C channels

_TABLE = 1
"""Separates these draws from others of the same (seed, epoch). Not 0: a trailing 0 does not change a numpy seed."""


@frozen(kw_only=True, eq=False)
class Draws:
    """The crop and the flip of each of the N samples of a split in one epoch."""

    corner: NDArray[np.intp]
    """[N, 2]: top and left of the crop within the padded image, in pixels."""
    mirrored: NDArray[np.bool_]
    """[N]"""


@frozen(kw_only=True)
class CropAndFlip:
    """Pad with black, crop the original size at random, mirror half of the images.

    The stored image is padded before normalisation, as in He et al. 2016 (arXiv:1512.03385, section 4.2).
    """

    padding: int
    flip: bool

    def draws(self, samples: int, *, seed: int, epoch: int) -> Draws:
        """Return the table of one epoch for `samples` samples."""
        generator = np.random.default_rng([seed, epoch, _TABLE])
        corner = generator.integers(0, 2 * self.padding + 1, size=(samples, 2), dtype=np.intp)
        mirrored = generator.random(samples) < 0.5 if self.flip else np.zeros(samples, np.bool_)  # noqa: PLR2004
        return Draws(corner=corner, mirrored=mirrored)

    def __call__(self, images: NDArray[np.uint8], indices: NDArray[np.intp], draws: Draws) -> NDArray[np.uint8]:
        """Return augmented images [n, H, W, C]; `images`, which must be the caller's own, may be overwritten."""
        if self.padding:
            images = self._crop(images, draws.corner[indices])
        if self.flip:
            mirrored = draws.mirrored[indices]
            images[mirrored] = images[mirrored, :, ::-1]
        return images

    def _crop(self, images: NDArray[np.uint8], corner: NDArray[np.intp]) -> NDArray[np.uint8]:
        n, height, width, channels = images.shape
        pad = self.padding
        padded = np.zeros((n, height + 2 * pad, width + 2 * pad, channels), np.uint8)
        padded[:, pad : pad + height, pad : pad + width] = images
        windows = sliding_window_view(padded, (height, width), axis=(1, 2)).transpose(0, 1, 2, 4, 5, 3)
        cropped: NDArray[np.uint8] = windows[np.arange(n), corner[:, 0], corner[:, 1]]
        return cropped


class PixelStore(Protocol):
    """Equally sized images by index."""

    def __getitem__(self, indices: NDArray[np.intp], /) -> NDArray[np.uint8]:
        """Return a new array [n, H, W, C]."""


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

    @property
    def plain(self) -> ImageSplit:
        """The same images without augmentation."""
        return evolve(self, augment=None)

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


def as_images(pixels: NDArray[np.uint8]) -> torch.Tensor:
    """Return a view of pixels [n, H, W, C]: a tensor [n, C, H, W] in channels-last memory format."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def image_split(
    images: tuple[PixelStore, NDArray[np.int64]], *, crop_padding: int = 0, flip: bool = False
) -> ImageSplit:
    """Return the split of (pixels, targets), augmented if it is cropped or flipped."""
    augment = CropAndFlip(padding=crop_padding, flip=flip) if crop_padding or flip else None
    return ImageSplit(pixels=images[0], targets=images[1], augment=augment)


def stratified(targets: NDArray[np.int64], *, share: float, seed: int) -> NDArray[np.bool_]:
    """Return a mask [N] that marks `share` of each class, at least one sample, chosen by `seed`."""
    order = np.random.default_rng(seed).permutation(len(targets))
    chosen = np.zeros(len(targets), np.bool_)
    for label in np.unique(targets):
        members = order[targets[order] == label]
        chosen[members[: max(1, round(share * len(members)))]] = True
    return chosen
