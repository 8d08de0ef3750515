"""What the data sets of this package share: options, facts, and how their files are read.

Every augmentation default is the one of the paper's recipe (PETRA, section 4: horizontal flip, random crop); means and
standard deviations are those of each training set, a channel each, in [0, 1].
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from petra_graph.catalog.datasets.splits import image_data_set
from petra_graph.errors import Problem, SpecError
from petra_graph.plugins import AtLeast, AtMost, DataFacts, DataSet, Each, GreaterThan, Length, option
from petra_graph_vision.transforms import augmented, check_transforms


def _channels(text: str, values: Sequence[float], bound: Any) -> Any:
    valid: Any = [Length(len(values)), Each(*bound)]
    return option(f"{text} of each channel, in [0, 1]", default=tuple(values), validator=valid)


def mean_of(*values: float) -> Any:
    return _channels("mean", values, [AtLeast(0), AtMost(1)])


def std_of(*values: float) -> Any:
    return _channels("standard deviation", values, [GreaterThan(0)])


@frozen(kw_only=True)
class ImageOptions:
    """Where the files are, augmentation and normalisation; other data sets have other means."""

    root: str = option("folder of the files; ~ and $NAME are expanded", validator=Length(at_least=1), is_path=True)
    flip: bool = option("mirror training images left to right, half of them on average", default=True)
    augment: tuple[dict[str, Any], ...] = option(
        "transforms of torchvision.transforms.v2 for each training image behind the crop and the flip, by their names and options: "
        '[{ name = "RandAugment", num_ops = 2 }]',
        default=(),
        validator=check_transforms,
    )
    mix: tuple[dict[str, Any], ...] = option(
        'MixUp, CutMix, or a list of both, of which one is drawn for each micro-batch of a training: [{ name = "MixUp", alpha = 0.2 }]; '
        "targets are then shares of the classes",
        default=(),
        validator=check_transforms,
    )
    mean: tuple[float, ...] = mean_of(0.485, 0.456, 0.406)
    std: tuple[float, ...] = std_of(0.229, 0.224, 0.225)


@frozen(kw_only=True)
class CroppedOptions(ImageOptions):
    """The same, with training images that are padded and cropped."""

    crop_padding: int = option(
        "black border around training images, out of which the original size is cropped at random; 0: no crop",
        default=4,
        unit="pixels",
        validator=AtLeast(0),
    )


def refused(message: str, hint: str = "") -> SpecError:
    return SpecError(Problem(message=message, hint=hint, path=("root",)))


def expanded(root: str) -> Path:
    return Path(os.path.expandvars(root)).expanduser().absolute()


@contextmanager
def reading(what: str, hint: str) -> Iterator[None]:
    """Say what torchvision, or a damaged file, raises as a problem of `root`."""
    try:
        yield
    except SpecError:
        raise
    except Exception as error:
        raise refused(f"{what} cannot be read: {str(error) or type(error).__name__}", hint) from error


def cropped(
    splits: Sequence[tuple[Any, NDArray[np.int64]]], facts: DataFacts, options: CroppedOptions, **more: Any
) -> DataSet:
    train, test = splits
    opened = image_data_set(train, test, facts=facts, crop_padding=options.crop_padding, flip=options.flip, **more)
    return augmented(opened, options)


def facts(channels: int, size: int | None = None, classes: int | None = None, names: str = "") -> Any:
    """Return the facts of uint8 images of one size, as a function of the options."""
    return lambda options: DataFacts(
        shape=(channels, size or options.size, size or options.size),
        classes=classes or options.classes,
        mean=options.mean,
        std=options.std,
        class_names=tuple(names.split()) or None,
    )
