"""Random crops and flips of whole batches.

Decision: the crops and flips of an epoch are drawn at once, as a table indexed by sample. So the augmentation of a
sample depends on (seed, epoch, index) alone, not on the order of fetches or on the process; and a batch costs three
numpy calls instead of a loop over images.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen
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
