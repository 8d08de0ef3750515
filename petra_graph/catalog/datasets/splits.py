"""Splits over any store of equally sized uint8 images, whose training batches are cropped or flipped at random.

Decision: the crops and flips of an epoch are drawn at once, as a table indexed by sample. So the augmentation of a sample depends on
(seed, epoch, index) alone, not on the order of fetches or on the process; and a batch costs three numpy calls, not a loop over images.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from attrs import define, evolve, field
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

# n samples of a call, N samples of a split, H height, W width, C channels

_TABLE = 1
"""Separates these draws from others of the same (seed, epoch). Not 0: a trailing 0 does not change a numpy seed."""


@define(eq=False)
class ImageSplit:
    """Images of a store with their targets; those of a training are padded with black, cropped to their size at random, and half of them mirrored."""

    pixels: Any
    """The store, such as a numpy array: it returns the pixels [n, H, W, C] of an array of sample indices, freshly allocated."""
    targets: NDArray[np.int64]
    """[N]"""
    crop_padding: int = field(default=0, kw_only=True)
    """On each side, pixels; 0: no crop."""
    flip: bool = field(default=False, kw_only=True)
    _drawn: tuple[tuple[int, int], NDArray[np.intp], NDArray[np.bool_]] | None = field(default=None, init=False)
    """A (seed, epoch) with its table: top and left of each sample's crop in the padded image [N, 2], and which are mirrored [N]."""

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def plain(self) -> ImageSplit:
        """The same images without augmentation."""
        return evolve(self, crop_padding=0, flip=False)

    def fetch_targets(self, indices: NDArray[np.intp]) -> torch.Tensor:
        return torch.from_numpy(self.targets[indices])

    def fetch(self, indices: NDArray[np.intp], *, seed: int, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        images: NDArray[np.uint8] = self.pixels[indices]
        if not self.crop_padding and not self.flip:
            return as_images(images), self.fetch_targets(indices)
        # The last table is kept, since an epoch fetches many times.
        if self._drawn is None or self._drawn[0] != (seed, epoch):
            generator, n = np.random.default_rng([seed, epoch, _TABLE]), len(self)
            corner = generator.integers(0, 2 * self.crop_padding + 1, size=(n, 2), dtype=np.intp)
            self._drawn = (seed, epoch), corner, generator.random(n) < 0.5  # noqa: PLR2004  a fair coin
        corner, mirrored = self._drawn[1][indices], self._drawn[2][indices]
        if pad := self.crop_padding:
            n, height, width, channels = images.shape
            padded = np.zeros((n, height + 2 * pad, width + 2 * pad, channels), np.uint8)
            padded[:, pad : pad + height, pad : pad + width] = images
            windows = sliding_window_view(padded, (height, width), axis=(1, 2)).transpose(0, 1, 2, 4, 5, 3)
            images = windows[np.arange(n), corner[:, 0], corner[:, 1]]
        if self.flip:
            images[mirrored] = images[mirrored, :, ::-1]
        return as_images(images), self.fetch_targets(indices)


def as_images(pixels: NDArray[np.uint8]) -> torch.Tensor:
    """Return a view of pixels [n, H, W, C]: a tensor [n, C, H, W] in channels-last memory format."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def stratified(targets: NDArray[np.int64], *, share: float, seed: int) -> NDArray[np.bool_]:
    """Return a mask [N] that marks `share` of each class, at least one sample, chosen by `seed`."""
    order = np.random.default_rng(seed).permutation(len(targets))
    chosen = np.zeros(len(targets), np.bool_)
    for label in np.unique(targets):
        members = order[targets[order] == label]
        chosen[members[: max(1, round(share * len(members)))]] = True
    return chosen
