"""The data sets of this package, as declarations without torch or numpy: what checks a specification imports neither.

Every augmentation default is the one of the paper's recipe (PETRA, section 4: horizontal flip, random crop); means and
standard deviations are those of each training set, a channel each, in [0, 1].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median_low
from typing import Any

from attrs import evolve, frozen

from petra_graph.plugins import (
    AtLeast,
    AtMost,
    DataFacts,
    DataSetDeclaration,
    Each,
    GreaterThan,
    Length,
    LessThan,
    option,
)
from petra_graph_vision.files import class_folders, expanded


def _root(layout: str) -> Any:
    return option(f"folder that holds {layout}; ~ and $NAME are expanded", validator=Length(at_least=1), is_path=True)


def _download() -> Any:
    return option("download missing files into root; without this, no file is downloaded", default=False)


def _crop_padding(default: int) -> Any:
    return option(
        "black border around training images, out of which the original size is cropped at random; 0: no crop",
        default=default,
        unit="pixels",
        validator=AtLeast(0),
    )


def _flip() -> Any:
    return option("mirror training images left to right, half of them on average", default=True)


def _transforms(_: object, attribute: Any, tables: Sequence[Mapping[str, Any]]) -> None:
    """Refuse transforms that torchvision does not have; it, and torch, are imported where some are listed."""
    if tables:
        from petra_graph_vision.transforms import transform_faults

        if faults := list(transform_faults(attribute.name, tables)):
            raise ValueError("; ".join(faults))


def _augment() -> Any:
    return option(
        "transforms of torchvision.transforms.v2 for each training image behind the crop and the flip, by their names and options: "
        '[{ name = "RandAugment", num_ops = 2 }]',
        default=(),
        validator=_transforms,
    )


def _mix() -> Any:
    return option(
        'MixUp, CutMix, or a list of both, of which one is drawn for each micro-batch of a training: [{ name = "MixUp", alpha = 0.2 }]; '
        "targets are then shares of the classes",
        default=(),
        validator=_transforms,
    )


def _mean(*default: float) -> Any:
    """Return the key `mean`, of as many channels as its default."""
    length = len(default)
    valid: Any = [Length(length), Each(AtLeast(0), AtMost(1))]
    return option("mean of each channel, in [0, 1]", default=default, validator=valid)


def _std(*default: float) -> Any:
    """Return the key `std`, of as many channels as its default."""
    length = len(default)
    valid: Any = [Length(length), Each(GreaterThan(0))]
    return option("standard deviation of each channel, in [0, 1]", default=default, validator=valid)


def _classes(default: int | None) -> Any:
    """Return the key `classes` of folders; None: any number."""
    return option("number of class folders that must be there", default=default, validator=AtLeast(2))


@frozen(kw_only=True)
class AugmentedOptions:
    """Augmentation and normalisation of colour images, for data sets of other distributions."""

    crop_padding: int = _crop_padding(4)
    flip: bool = _flip()
    augment: tuple[dict[str, Any], ...] = _augment()
    mix: tuple[dict[str, Any], ...] = _mix()
    mean: tuple[float, ...] = _mean(0.485, 0.456, 0.406)
    std: tuple[float, ...] = _std(0.229, 0.224, 0.225)


@frozen(kw_only=True)
class Cifar10Options:
    """Files of CIFAR-10, augmentation and normalisation."""

    root: str = _root("cifar-10-batches-py, or that folder itself")
    download: bool = _download()
    crop_padding: int = _crop_padding(4)
    flip: bool = _flip()
    augment: tuple[dict[str, Any], ...] = _augment()
    mix: tuple[dict[str, Any], ...] = _mix()
    mean: tuple[float, ...] = _mean(0.4914, 0.4822, 0.4465)
    std: tuple[float, ...] = _std(0.2470, 0.2435, 0.2616)


@frozen(kw_only=True)
class Cifar100Options:
    """Files of CIFAR-100, augmentation and normalisation; targets are the 100 fine classes."""

    root: str = _root("cifar-100-python, or that folder itself")
    download: bool = _download()
    crop_padding: int = _crop_padding(4)
    flip: bool = _flip()
    augment: tuple[dict[str, Any], ...] = _augment()
    mix: tuple[dict[str, Any], ...] = _mix()
    mean: tuple[float, ...] = _mean(0.5071, 0.4865, 0.4409)
    std: tuple[float, ...] = _std(0.2673, 0.2564, 0.2762)


@frozen(kw_only=True)
class FashionMnistOptions:
    """Files of Fashion-MNIST, augmentation and normalisation; images are grey."""

    root: str = _root("FashionMNIST/raw, or the four ubyte files themselves, plain or as .gz")
    download: bool = _download()
    crop_padding: int = _crop_padding(4)
    flip: bool = _flip()
    augment: tuple[dict[str, Any], ...] = _augment()
    mix: tuple[dict[str, Any], ...] = _mix()
    mean: tuple[float, ...] = _mean(0.2860)
    std: tuple[float, ...] = _std(0.3530)


@frozen(kw_only=True)
class ImageNet32Options:
    """Files of downsampled ImageNet, augmentation and normalisation."""

    root: str = _root("train_data_batch_1 to _10 and val_data")
    crop_padding: int = _crop_padding(4)
    flip: bool = _flip()
    augment: tuple[dict[str, Any], ...] = _augment()
    mix: tuple[dict[str, Any], ...] = _mix()
    mean: tuple[float, ...] = _mean(0.4811, 0.4575, 0.4078)
    std: tuple[float, ...] = _std(0.2605, 0.2533, 0.2683)


@frozen(kw_only=True)
class ImageNetOptions:
    """Folders of ImageNet, and the crops of its images from their full size."""

    root: str = _root("the folders of training and test images, each with a folder a class")
    train: str = option("folder of the training images, below root", default="train", validator=Length(at_least=1))
    test: str = option("folder of the test images, below root", default="val", validator=Length(at_least=1))
    classes: int = _classes(1000)
    size: int = option("height and width of an image", default=224, unit="pixels", validator=AtLeast(1))
    resize: int = option(
        "shorter side that test images get before the centre is cropped",
        default=256,
        unit="pixels",
        validator=AtLeast(1),
    )
    least_area: float = option(
        "smallest share of a training image that a random crop keeps; 1: the largest crop",
        default=0.08,
        validator=[GreaterThan(0), AtMost(1)],
    )
    flip: bool = _flip()
    augment: tuple[dict[str, Any], ...] = _augment()
    mix: tuple[dict[str, Any], ...] = _mix()
    mean: tuple[float, ...] = _mean(0.485, 0.456, 0.406)
    std: tuple[float, ...] = _std(0.229, 0.224, 0.225)

    def __attrs_post_init__(self) -> None:
        if self.resize < self.size:
            raise ValueError(f"resize must be at least size (got resize = {self.resize}, size = {self.size})")


@frozen(kw_only=True)
class ImageFolderOptions:
    """Folders of images, the one size of all, augmentation and normalisation."""

    root: str = _root("the folders of training and test images, each with a folder a class")
    train: str = option("folder of the training images, below root", default="train", validator=Length(at_least=1))
    test: str = option("folder of the test images, below root", default="test", validator=Length(at_least=1))
    test_share: float | None = option(
        "share of each class that is kept for the test, the same in every run, where root holds the class folders themselves; "
        "default: root holds a folder for training and one for the test",
        default=None,
        validator=[GreaterThan(0), LessThan(1)],
    )
    size: int = option(
        "height and width of an image; others are resized by their shorter side, then cropped at the centre",
        unit="pixels",
        validator=AtLeast(1),
    )
    cache: bool = option("decode all images once, into memory (size * size * 3 bytes an image)", default=False)
    classes: int | None = _classes(None)
    crop_padding: int = _crop_padding(4)
    flip: bool = _flip()
    augment: tuple[dict[str, Any], ...] = _augment()
    mix: tuple[dict[str, Any], ...] = _mix()
    mean: tuple[float, ...] = _mean(0.485, 0.456, 0.406)
    std: tuple[float, ...] = _std(0.229, 0.224, 0.225)

    @property
    def layout(self) -> str:
        """What root must hold, as a hint."""
        if self.test_share is not None:
            return "root must hold a folder of images for each class; leave test_share out if it holds train/ and test/"
        return (
            f"root must hold {self.train}/ and {self.test}/ with a folder of images a class each; set options "
            '"train" and "test" for other names, or "test_share" if root itself holds the class folders'
        )


@frozen(kw_only=True)
class _Images:
    """The facts of uint8 images of one size, as a function of the options."""

    channels: int
    size: int | None = None
    classes: int | None = None
    names: str | None = None
    """The names of the classes, in a text with spaces between them; None: they are not known."""

    def __call__(self, options: Any) -> DataFacts:
        size = self.size or options.size
        classes = self.classes or options.classes
        return DataFacts(
            shape=(self.channels, size, size),
            classes=classes,
            mean=options.mean,
            std=options.std,
            class_names=None if self.names is None else tuple(self.names.split()),
        )


def _count_classes(options: ImageFolderOptions) -> ImageFolderOptions:
    """Return the options with the number of class folders, if it is not given.

    Raises:
        SpecError: the folder is missing, or has no class folder.
    """
    if options.classes is not None:
        return options
    folder = expanded(options.root) / (options.train if options.test_share is None else "")
    return evolve(options, classes=len(class_folders(folder, classes=None, hint=options.layout)))


def _suggest(options: ImageFolderOptions) -> ImageFolderOptions:
    """Return the options of the images found: their size, and a share for the test where root holds the class folders themselves."""
    from petra_graph.image_files import SUFFIXES, read_size, visible_files

    root = expanded(options.root)
    with suppress(OSError):  # whoever opens the folders says so
        if not any((root / split).is_dir() for split in (options.train, options.test)):
            options = evolve(options, test_share=options.test_share or _SHARE)

        files = sorted(file for file in visible_files(root) if Path(file).suffix.lower() in SUFFIXES)
        shorter = []
        for file in files[:: max(1, len(files) // _MEASURED)]:
            with suppress(ValueError):
                shorter.append(min(read_size(file)))
        if shorter:
            options = evolve(options, size=min(median_low(shorter), _LARGEST))
    return options


_SHARE, _LARGEST, _MEASURED = 0.2, 224, 100
"""What a new spec has for a folder of images: the share for the test, the greatest size, and how many images are measured, spread over all."""
IMAGENET_TRAINING, IMAGENET_CLASSES = 1_281_167, 1000

CIFAR10 = DataSetDeclaration(
    summary="CIFAR-10: 60,000 images 3x32x32 of 10 classes, in its python (pickle) files.",
    options=Cifar10Options,
    build="petra_graph_vision.pickled_sets:cifar10",
    training_samples=lambda _: 50_000,
    facts=_Images(channels=3, size=32, classes=10, names="airplane automobile bird cat deer dog frog horse ship truck"),
)
CIFAR100 = DataSetDeclaration(
    summary="CIFAR-100: 60,000 images 3x32x32 of 100 classes, in its python (pickle) files.",
    options=Cifar100Options,
    build="petra_graph_vision.pickled_sets:cifar100",
    training_samples=lambda _: 50_000,
    facts=_Images(channels=3, size=32, classes=100),
)
FASHION_MNIST = DataSetDeclaration(
    summary="Fashion-MNIST: 70,000 grey images 1x28x28 of 10 classes, in its idx (ubyte) files.",
    options=FashionMnistOptions,
    build="petra_graph_vision.fashion_mnist:fashion_mnist",
    training_samples=lambda _: 60_000,
    facts=_Images(
        channels=1,
        size=28,
        classes=10,
        names="t-shirt/top trouser pullover dress coat sandal shirt sneaker bag ankle-boot",
    ),
)
IMAGENET = DataSetDeclaration(
    summary="ImageNet (ILSVRC 2012) as folders of JPEG files, a folder a class.",
    options=ImageNetOptions,
    build="petra_graph_vision.folder_sets:imagenet",
    training_samples=lambda options: IMAGENET_TRAINING if options.classes == IMAGENET_CLASSES else None,
    read="petra_graph_vision.folder_sets:read_image",
    facts=_Images(channels=3),
)
IMAGENET32 = DataSetDeclaration(
    summary="Downsampled ImageNet: 1,331,167 images 3x32x32 of 1000 classes, in its pickled batches.",
    options=ImageNet32Options,
    build="petra_graph_vision.pickled_sets:imagenet32",
    training_samples=lambda _: IMAGENET_TRAINING,
    facts=_Images(channels=3, size=32, classes=1000),
)
IMAGE_FOLDER = DataSetDeclaration(
    summary="Any images in folders, a folder a class, brought to one size.",
    options=ImageFolderOptions,
    build="petra_graph_vision.folder_sets:image_folder",
    completed=_count_classes,
    suggested=_suggest,
    read="petra_graph_vision.folder_sets:read_image",
    facts=_Images(channels=3),
)
