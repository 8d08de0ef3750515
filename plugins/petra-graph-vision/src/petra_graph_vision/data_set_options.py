"""The options of this package's data sets, which import neither torch nor numpy.

Every augmentation default is the one of the paper's recipe (PETRA, section 4: horizontal flip, random crop); means and
standard deviations are those of each training set, a channel each, in [0, 1].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from petra_graph.plugins import AtLeast, AtMost, Each, GreaterThan, Length, LessThan, option


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
