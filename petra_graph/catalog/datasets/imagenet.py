"""ImageNet from its JPEG files, a crop of random size in training.

Decision: each training sample has a generator of its own, seeded with (seed, epoch, index): a million samples are
decoded by workers that share nothing, and beside a decoded JPEG a generator costs nothing.

Source of both views: Szegedy et al. 2015 (arXiv:1409.4842, section 6) and He et al. 2016 (arXiv:1512.03385, section
3.4), with torchvision's constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray
from PIL import Image

from petra_graph.catalog.datasets.declared import IMAGENET, ImageNetOptions
from petra_graph.catalog.datasets.folders import fitted, open_rgb, scan_halves
from petra_graph.catalog.datasets.places import expanded
from petra_graph.catalog.datasets.splits import Halves, as_images
from petra_graph.registry.contracts import DataSet

_SAMPLE = 2
"""Sets these draws apart from others of the same (seed, epoch)."""
_RATIOS = (log(3 / 4), log(4 / 3))
"""Width by height of a random crop, as logarithms."""
_ATTEMPTS = 10


@frozen(kw_only=True)
class TrainingView:
    """A random crop, resized to size x size, mirrored every other time."""

    size: int
    least_area: float
    flip: bool

    def __call__(self, image: Image.Image, generator: np.random.Generator) -> NDArray[np.uint8]:
        """Return uint8 [size, size, 3]."""
        box = random_box(image.width, image.height, self.least_area, generator)
        pixels = np.asarray(image.crop(box).resize((self.size, self.size), Image.Resampling.BILINEAR))
        return pixels[:, ::-1] if self.flip and generator.random() < 0.5 else pixels  # noqa: PLR2004  a fair coin


@frozen(kw_only=True)
class CentreView:
    """The centre of the image resized by its shorter side."""

    size: int
    resize: int

    def __call__(self, image: Image.Image, generator: np.random.Generator) -> NDArray[np.uint8]:
        """Return uint8 [size, size, 3]."""
        return fitted(image, self.size, shorter=self.resize)


def random_box(width: int, height: int, least_area: float, generator: np.random.Generator) -> tuple[int, int, int, int]:
    """Draw a box (left, top, right, bottom) in pixels with `least_area` .. 1 of the area, 3:4 to 4:3 in shape.

    After ten draws that do not fit, it is the largest box in the centre whose shape is allowed.
    """
    for _ in range(_ATTEMPTS):
        area = width * height * generator.uniform(least_area, 1)
        ratio = exp(generator.uniform(*_RATIOS))
        w, h = round(sqrt(area * ratio)), round(sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(generator.integers(width - w + 1)), int(generator.integers(height - h + 1))
            return left, top, left + w, top + h
    narrowest, widest = (exp(ratio) for ratio in _RATIOS)
    w = min(width, max(1, round(height * widest)))
    h = min(height, max(1, round(width / narrowest)))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


@frozen(kw_only=True, eq=False)
class FileSplit:
    """One half: files, decoded when asked for."""

    files: Sequence[str]
    targets: NDArray[np.int64]
    view: TrainingView | CentreView
    size: int

    def __len__(self) -> int:
        return len(self.files)

    def fetch(self, indices: NDArray[np.intp], *, seed: int, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Load samples: uint8 images [n, 3, size, size] in channels-last memory, and int64 targets [n].

        Raises:
            RunFailed: A file cannot be decoded.
        """
        pixels = np.empty((len(indices), self.size, self.size, 3), np.uint8)
        for position, index in enumerate(indices):
            generator = np.random.default_rng([seed, epoch, _SAMPLE, int(index)])
            pixels[position] = self.view(open_rgb(self.files[index]), generator)
        return as_images(pixels), self.fetch_targets(indices)

    def fetch_targets(self, indices: NDArray[np.intp]) -> torch.Tensor:
        """Load the targets alone: int64 [n]."""
        return torch.from_numpy(self.targets[indices])


def imagenet(options: ImageNetOptions) -> DataSet:
    """Open ImageNet's folders: uint8 [3, size, size]; classes are numbered in the order of their folders' names.

    Raises:
        SpecError: Folders are missing or are not as many as `classes`.
    """
    hint = (
        f"root must hold {options.train}/ and {options.test}/ with a folder of images for each of "
        f"{options.classes} classes (validation images sorted into them); get ILSVRC 2012 from https://image-net.org, "
        'or name other folders in options "train", "test" and "classes"'
    )
    train, test = scan_halves(expanded(options.root), options.train, options.test, classes=options.classes, hint=hint)
    training = TrainingView(size=options.size, least_area=options.least_area, flip=options.flip)
    testing = CentreView(size=options.size, resize=options.resize)
    return Halves(
        train=FileSplit(files=train.files, targets=train.targets, view=training, size=options.size),
        test=FileSplit(files=test.files, targets=test.targets, view=testing, size=options.size),
        facts=IMAGENET.facts(options),
    )
