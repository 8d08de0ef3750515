"""Images in folders, resized to one size, or for ImageNet's training cropped at random.

Decision: images are decoded at every fetch or once into memory (`cache`). Both ways have the same augmentation, so
`cache` changes time and memory, but no pixel.

Decision: an image folder is opened with the header of each file, which takes 50 us where decoding takes a millisecond: what is no image
is named before the training. ImageNet's million published files are not, since every process would read them.

Decision: each training sample of ImageNet has a generator of its own, seeded with (seed, epoch, index): the workers
that decode a million samples share no state, and a generator costs little compared with decoding a JPEG. The boxes of
random crops are therefore drawn here: torchvision's RandomResizedCrop draws from torch's global generator.

Source of ImageNet's views: Szegedy et al. 2015 (arXiv:1409.4842, section 6) and He et al. 2016 (arXiv:1512.03385,
section 3.4), with torchvision's constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt
from pathlib import Path

import numpy as np
import torch
from attrs import define, evolve
from numpy.typing import NDArray
from PIL import Image

from petra_graph.catalog.datasets.splits import (
    ImageSplit,
    LabelledSplit,
    OpenedDataSet,
    PixelStore,
    as_images,
    image_data_set,
    stratified,
)
from petra_graph.errors import RunFailed, SpecError
from petra_graph.plugins import DataSet
from petra_graph.units import listed
from petra_graph_vision.class_folders import (
    ClassFolders,
    ImageFiles,
    centre,
    decode_all,
    open_rgb,
    scan_folder,
    scan_splits,
    try_headers,
)
from petra_graph_vision.data_set_options import ImageFolderOptions, ImageNetOptions
from petra_graph_vision.declared import IMAGE_FOLDER, IMAGENET
from petra_graph_vision.files import expanded, file_error
from petra_graph_vision.transforms import augmented

_PERMUTATION = 2406
"""Of the images that are kept for the test; the run's seed does not change the choice."""


def image_folder(options: ImageFolderOptions) -> DataSet:
    """Open folders of images: uint8 [3, size, size]; classes are the folders' names in alphabetical order.

    Raises:
        SpecError: folders are missing or do not fit together; files are no images; or `cache` is set and one cannot be decoded.
    """
    root, classes, hint = expanded(options.root), options.classes, options.layout
    if options.test_share is None:
        train, test = scan_splits(root, options.train, options.test, classes=classes, hint=hint)
    else:
        every = scan_folder(root, classes=classes, hint=hint)
        if single := [every.classes[at] for at in np.flatnonzero(np.bincount(every.targets) == 1)]:
            raise file_error(
                f"{root} has classes of one image, which none is left to train with: {listed(single)}", hint
            )
        chosen = stratified(every.targets, share=options.test_share, seed=_PERMUTATION)
        train, test = every.part(~chosen), every.part(chosen)
    try_headers(train, test)
    opened = image_data_set(
        (_store(train, options), train.targets),
        (_store(test, options), test.targets),
        facts=evolve(IMAGE_FOLDER.facts(options), classes=len(train.classes), class_names=train.classes),
        crop_padding=options.crop_padding,
        flip=options.flip,
        files=(train.files, test.files),
    )
    return augmented(opened, options)


def _store(folders: ClassFolders, options: ImageFolderOptions) -> PixelStore:
    # Threads would not help: for small images the interpreter, which threads share, takes longer than the decoder.
    files = ImageFiles(files=folders.files, size=options.size)
    if not options.cache:
        return files
    try:
        return files[np.arange(len(folders.files))]
    except RunFailed as error:  # No run has begun.
        raise SpecError(error.problems) from error


def read_image(options: ImageFolderOptions | ImageNetOptions, path: Path) -> torch.Tensor:
    """Read one file as the test split reads it: uint8 [3, size, size].

    Raises:
        RunFailed: it cannot be decoded.
    """
    shorter = options.resize if isinstance(options, ImageNetOptions) else None
    return as_images(centre(open_rgb(str(path)), options.size, shorter=shorter)[np.newaxis].copy())[0]


_SAMPLE = 2
"""Sets these draws apart from others of the same (seed, epoch)."""
_RATIOS = (log(3 / 4), log(4 / 3))
"""Width by height of a random crop, as logarithms."""
_ATTEMPTS = 10


def random_view(image: Image.Image, options: ImageNetOptions, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Return a random crop, resized and mirrored with probability 1/2: [size, size, 3]."""
    box = random_box(image.width, image.height, options.least_area, generator)
    pixels = np.asarray(image.crop(box).resize((options.size, options.size), Image.Resampling.BILINEAR))
    return pixels[:, ::-1] if options.flip and generator.random() < 0.5 else pixels  # noqa: PLR2004  a fair coin


def random_box(width: int, height: int, least_area: float, generator: np.random.Generator) -> tuple[int, int, int, int]:
    """Draw a box (left, top, right, bottom) in pixels with `least_area` .. 1 of the area, 3:4 to 4:3 in shape.

    After ten draws that do not fit, the result is the largest box in the centre with such a shape.
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


@define(kw_only=True, eq=False)
class RandomViews(LabelledSplit):
    """The training split: files, decoded at each fetch."""

    options: ImageNetOptions

    @property
    def plain(self) -> ImageSplit:
        """The same images, each one's centre."""
        return _centres(self.files, self.targets, self.options)

    def fetch(self, indices: NDArray[np.intp], *, seed: int, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Load samples: uint8 images [n, 3, size, size] in channels-last memory, and int64 targets [n].

        Raises:
            RunFailed: a file cannot be decoded.
        """

        def view(image: Image.Image, index: int) -> NDArray[np.uint8]:
            return random_view(image, self.options, np.random.default_rng([seed, epoch, _SAMPLE, index]))

        return as_images(decode_all(self.files, indices, self.options.size, view)), self.fetch_targets(indices)


def imagenet(options: ImageNetOptions) -> DataSet:
    """Open ImageNet's folders: uint8 [3, size, size]; classes are numbered in the order of their folders' names.

    Raises:
        SpecError: folders are missing, or their number is not `classes`.
    """
    hint = (
        f"root must hold {options.train}/ and {options.test}/ with a folder of images for each of "
        f"{options.classes} classes (validation images sorted into them); get ILSVRC 2012 from https://image-net.org, "
        'or name other folders in options "train", "test" and "classes"'
    )
    train, test = scan_splits(expanded(options.root), options.train, options.test, classes=options.classes, hint=hint)
    opened = OpenedDataSet(
        train=RandomViews(files=train.files, targets=train.targets, options=options),
        test=_centres(test.files, test.targets, options),
        facts=evolve(IMAGENET.facts(options), class_names=train.classes),
    )
    return augmented(opened, options)


def _centres(files: Sequence[str], targets: NDArray[np.int64], options: ImageNetOptions) -> ImageSplit:
    pixels = ImageFiles(files=files, size=options.size, shorter=options.resize)
    return ImageSplit(pixels=pixels, targets=targets, files=files)
