"""Images in folders, resized to one size, or for ImageNet's training cropped at random.

Class folders are numbered in the order of their names, and files within them likewise, so that a sample's index does not depend on the
file system.

Decision: each training sample of ImageNet has a generator of its own, seeded with (seed, epoch, index): the workers
that decode a million samples share no state, and a generator costs little compared with decoding a JPEG. The boxes of
random crops are therefore drawn here: torchvision's RandomResizedCrop draws from torch's global generator.

Source of ImageNet's views: Szegedy et al. 2015 (arXiv:1409.4842, section 6) and He et al. 2016 (arXiv:1512.03385,
section 3.4), with torchvision's constants.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import chain
from math import exp, log, sqrt
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from attrs import evolve, frozen
from numpy.typing import NDArray
from PIL import Image

from petra_graph.catalog.datasets.splits import ImageSplit, as_images, stratified
from petra_graph.errors import RunFailed, SpecError
from petra_graph.image_files import SUFFIXES, decode, resize_and_crop, visible_files
from petra_graph.plugins import AtLeast, AtMost, DataFacts, GreaterThan, Length, LessThan
from petra_graph_vision.images import Augment, Flip, Mean, Mix, Padding, Root, Std, expanded, reading
from petra_graph_vision.published_sets import IMAGENET_TRAINING
from petra_graph_vision.transforms import augmented

IMAGENET_CLASSES = 1000
_SPLITS = {"test", "train", "val", "valid", "validation"}
"""Names of folders that are no classes, if there are no others."""
_PERMUTATION = 2406
"""Of the images that are kept for the test; the run's seed does not change the choice."""
_SAMPLE = 2
"""Sets the draws of ImageNet's views apart from others of the same (seed, epoch)."""
_RATIOS = (log(3 / 4), log(4 / 3))
"""Width by height of a random crop, as logarithms."""
_ATTEMPTS = 10


Train = Annotated[str, "folder of the training images, below root", Length(at_least=1)]
Test = Annotated[str, "folder of the test images, below root", Length(at_least=1)]


class ImageNet:
    """ImageNet (ILSVRC 2012) as folders of JPEG files, a folder a class.

    uint8 [3, size, size]; classes are numbered in the order of their folders' names.
    """

    def __init__(
        self,
        *,
        root: Root,
        train: Train = "train",
        test: Test = "val",
        classes: Annotated[int, "number of class folders that must be there", AtLeast(2)] = IMAGENET_CLASSES,
        size: Annotated[int, "height and width of an image, pixels", AtLeast(1)] = 224,
        resize: Annotated[
            int, "shorter side that test images get before the centre is cropped, pixels", AtLeast(1)
        ] = 256,
        least_area: Annotated[
            float,
            "smallest share of a training image that a random crop keeps; 1: the largest crop",
            GreaterThan(0),
            AtMost(1),
        ] = 0.08,
        flip: Flip = True,
        augment: Augment = (),
        mix: Mix = (),
        mean: Mean = (0.485, 0.456, 0.406),
        std: Std = (0.229, 0.224, 0.225),
    ) -> None:
        hint = (
            f"root must hold {train}/ and {test}/ with a folder of images for each of "
            f"{classes} classes (validation images sorted into them); get ILSVRC 2012 from https://image-net.org, "
            'or name other folders in options "train", "test" and "classes"'
        )
        of_train, of_test = _both(root, train, test, classes, hint)
        facts = self.facts(size=size, resize=resize, classes=classes, mean=mean, std=std)
        self.facts = evolve(facts, class_names=of_train.classes)  # type: ignore[method-assign, assignment]
        views = RandomViews(plain=of_train.centres(size, resize), least_area=least_area, flip=flip)
        self.train, self.test = augmented(views, facts, augment, mix), of_test.centres(size, resize)

    @staticmethod
    def facts(*, size: int, resize: int, classes: int, mean: tuple[float, ...], std: tuple[float, ...]) -> DataFacts:
        if resize < size:
            raise ValueError(f"resize must be at least size (got resize = {resize}, size = {size})")
        return DataFacts(shape=(3, size, size), classes=classes, mean=mean, std=std)

    @staticmethod
    def training_samples(*, classes: int) -> int | None:
        """Return the number of training samples of the whole set."""
        return IMAGENET_TRAINING if classes == IMAGENET_CLASSES else None

    @staticmethod
    def read(path: Path, *, size: int, resize: int) -> torch.Tensor:
        """Read one file as the test split reads it: uint8 [3, size, size]; RunFailed: it cannot be decoded."""
        return read_image(path, size, resize)


class ImageFolder:
    """Any images in folders, a folder a class, brought to one size.

    uint8 [3, size, size]; classes are the folders' names in alphabetical order.
    """

    def __init__(
        self,
        *,
        root: Root,
        train: Train = "train",
        test: Test = "test",
        test_share: Annotated[
            float | None,
            "share of each class that is kept for the test, the same in every run, where root holds the class folders themselves; "
            "default: root holds a folder for training and one for the test",
            GreaterThan(0),
            LessThan(1),
        ] = None,
        size: Annotated[
            int,
            "height and width of an image, pixels; others are resized by their shorter side, then cropped at the centre",
            AtLeast(1),
        ],
        classes: Annotated[
            int | None, "number of class folders that must be there; default: they are counted", AtLeast(2)
        ] = None,
        crop_padding: Padding = 4,
        flip: Flip = True,
        augment: Augment = (),
        mix: Mix = (),
        mean: Mean = (0.485, 0.456, 0.406),
        std: Std = (0.229, 0.224, 0.225),
    ) -> None:
        hint = _layout(train, test, test_share)
        if test_share is None:
            of_train, of_test = _both(root, train, test, classes, hint)
        else:
            every = ClassFolders.of(expanded(root), classes, hint)
            chosen = stratified(every.targets, share=test_share, seed=_PERMUTATION)
            of_train, of_test = every.part(~chosen), every.part(chosen)
        facts = self.facts(size=size, classes=len(of_train.classes), mean=mean, std=std)
        self.facts = evolve(facts, class_names=of_train.classes)  # type: ignore[method-assign, assignment]
        cropped = evolve(of_train.centres(size), crop_padding=crop_padding, flip=flip)
        self.train, self.test = augmented(cropped, facts, augment, mix), of_test.centres(size)

    @staticmethod
    def facts(*, size: int, classes: int | None = None, mean: tuple[float, ...], std: tuple[float, ...]) -> DataFacts:
        return DataFacts(shape=(3, size, size), classes=classes, mean=mean, std=std)

    @staticmethod
    def completed(
        *, root: Path, train: str, test: str, test_share: float | None = None, classes: int | None = None
    ) -> Mapping[str, Any]:
        """Return the number of class folders, if it is not given; SpecError: the folder is missing."""
        if classes is not None:
            return {}
        folder = expanded(root) / (train if test_share is None else "")
        with reading(str(folder), _layout(train, test, test_share)):
            return {"classes": max(2, len(_class_names(folder)))}

    @staticmethod
    def read(path: Path, *, size: int) -> torch.Tensor:
        """Read one file as the test split reads it: uint8 [3, size, size]; RunFailed: it cannot be decoded."""
        return read_image(path, size)


def _both(root: Path, train: str, test: str, classes: int | None, hint: str) -> tuple[ClassFolders, ClassFolders]:
    folders = [expanded(root) / part for part in (train, test)]
    both = [ClassFolders.of(folder, classes, hint) for folder in folders]
    if odd := sorted(set(both[0].classes) ^ set(both[1].classes)):
        message = f"{folders[0]} and {folders[1]} must have the same classes (only one has {', '.join(odd[:5])})"
        raise SpecError(message, hint, ("root",))
    return both[0], both[1]


def _layout(train: str, test: str, test_share: float | None) -> str:
    if test_share is not None:
        return "root must hold a folder of images for each class; leave test_share out if it holds train/ and test/"
    return (
        f"root must hold {train}/ and {test}/ with a folder of images a class each; set options "
        '"train" and "test" for other names, or "test_share" if root itself holds the class folders'
    )


def read_image(path: Path, size: int, shorter: int | None = None) -> torch.Tensor:
    pixels = centre(open_rgb(str(path)), size, shorter)
    return as_images(pixels[np.newaxis].copy())[0]


@frozen(kw_only=True, eq=False)
class ClassFolders:
    """The image files below one folder."""

    classes: tuple[str, ...]
    """Names of the class folders, in the order of their numbers."""
    files: tuple[str, ...]
    """[N]; plain strings, as a million Path objects would cost a gigabyte."""
    targets: NDArray[np.int64]
    """[N]"""

    @classmethod
    def of(cls, folder: Path, classes: int | None, hint: str) -> ClassFolders:
        """Scan a folder; SpecError: it does not exist, has another number of classes, or has a class without images."""
        with reading(str(folder), hint):
            names = _class_names(folder)
            found = [
                sorted(one for one in visible_files(folder / name) if os.path.splitext(one)[1].lower() in SUFFIXES)  # noqa: PTH122  quicker
                for name in names
            ]
        if names and set(names) <= _SPLITS:
            hint = "leave out test_share, which parts the images of one folder"
            raise SpecError(
                f"{folder} has the folders {', '.join(names)}, which are splits and not classes", hint, ("root",)
            )
        if len(names) != (classes or max(2, len(names))):
            raise SpecError(
                f"{folder} must hold {classes or 'at least two'} class folders (got {len(names)})", hint, ("root",)
            )
        if empty := [name for name, files in zip(names, found, strict=True) if not files]:
            raise SpecError(f"{folder} has classes without images: {', '.join(empty[:5])}", hint, ("root",))
        counts = [len(files) for files in found]
        return cls(
            classes=names, files=tuple(chain.from_iterable(found)), targets=np.repeat(np.arange(len(names)), counts)
        )

    def centres(self, size: int, shorter: int | None = None) -> ImageSplit:
        """Return the images, each resized by its shorter side and cropped at the centre, as of `centre`."""
        return ImageSplit(ImageFiles(files=self.files, size=size, shorter=shorter), self.targets)

    def part(self, chosen: NDArray[np.bool_]) -> ClassFolders:
        """Return the images of a mask [N]."""
        files = tuple(file for file, taken in zip(self.files, chosen, strict=True) if taken)
        return evolve(self, files=files, targets=self.targets[chosen])


def _class_names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(one.name for one in folder.iterdir() if one.is_dir() and not one.name.startswith(".")))


def open_rgb(file: str) -> Image.Image:
    """Return one file decoded to RGB; RunFailed: it cannot be decoded."""
    try:
        return decode(file)
    except ValueError as error:
        raise RunFailed(f"{file} cannot be decoded: {error}", "replace or remove the file", ("root",)) from error


def centre(image: Image.Image, size: int, shorter: int | None = None) -> NDArray[np.uint8]:
    """Return an image resized by its shorter side to `shorter` (default: `size`), cropped at the centre: [size, size, 3]."""
    width, height = (int((shorter or size) * side / min(image.size)) for side in image.size)
    return np.asarray(resize_and_crop(image, (width, height), (size, size)))


@frozen(kw_only=True, eq=False)
class ImageFiles:
    """A store that decodes files at each access."""

    files: Sequence[str]
    size: int
    shorter: int | None = None
    """The shorter side before the crop; None: `size`."""

    def __getitem__(self, indices: NDArray[np.intp]) -> NDArray[np.uint8]:
        return np.stack([centre(open_rgb(self.files[index]), self.size, self.shorter) for index in indices])


@frozen(kw_only=True, eq=False)
class RandomViews:
    """The training split of ImageNet: files, decoded at each fetch."""

    plain: ImageSplit
    """The same images, each one's centre."""
    least_area: float
    flip: bool

    def __len__(self) -> int:
        return len(self.plain)

    def fetch_targets(self, indices: NDArray[np.intp]) -> torch.Tensor:
        return self.plain.fetch_targets(indices)

    def fetch(self, indices: NDArray[np.intp], *, seed: int, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Load samples: uint8 images [n, 3, size, size] in channels-last memory, and int64 targets [n]; RunFailed: a file cannot be decoded."""
        of, views = self.plain.pixels, list[NDArray[np.uint8]]()
        for index in map(int, indices):
            generator = np.random.default_rng([seed, epoch, _SAMPLE, index])
            views.append(random_view(open_rgb(of.files[index]), of.size, self.least_area, generator, flip=self.flip))
        return as_images(np.stack(views)), self.fetch_targets(indices)


def random_view(
    image: Image.Image, size: int, least_area: float, generator: np.random.Generator, *, flip: bool
) -> NDArray[np.uint8]:
    """Return a random crop, resized and mirrored with probability 1/2: [size, size, 3]."""
    box = random_box(image.width, image.height, least_area, generator)
    pixels = np.asarray(image.crop(box).resize((size, size), Image.Resampling.BILINEAR))
    return pixels[:, ::-1] if flip and generator.random() < 0.5 else pixels  # noqa: PLR2004  a fair coin


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
