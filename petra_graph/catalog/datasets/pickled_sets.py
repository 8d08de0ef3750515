"""CIFAR-10, CIFAR-100 and downsampled ImageNet in their published pickled batches.

Decision: torchvision downloads CIFAR's files but does not read them. Its reader refuses any file whose checksum is not
the published one, and a folder made from the same images (`tools/make_cifar10_batches.py`) is as good to train on.

Downsampled ImageNet counts its labels from 1. Its files also hold the "mean" image, which the data set ignores, since
normalisation is by channel.

Sources: Krizhevsky 2009, "Learning multiple layers of features from tiny images",
https://www.cs.toronto.edu/~kriz/cifar.html; Chrabaszcz, Loshchilov and Hutter 2017, arXiv:1707.08819,
https://image-net.org/download-images.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from petra_graph.catalog.datasets.declared import (
    CIFAR10,
    CIFAR100,
    IMAGENET32,
    Cifar10Options,
    Cifar100Options,
    ImageNet32Options,
)
from petra_graph.catalog.datasets.files import expanded, file_error, find_folder
from petra_graph.catalog.datasets.pickled import PickledSet, read_batches
from petra_graph.catalog.datasets.splits import image_data_set
from petra_graph.registry.contracts import DataFacts, DataSet

_CIFAR_HINT = (
    "root must hold {} and the others; set download = true, "
    "or unpack the python version from https://www.cs.toronto.edu/~kriz/cifar.html there"
)
_CIFAR10 = PickledSet(
    name="cifar10",
    folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test=("test_batch",),
    classes=10,
    hint=_CIFAR_HINT.format("cifar-10-batches-py/ with data_batch_1"),
    torchvision="CIFAR10",
)
_CIFAR100 = PickledSet(
    name="cifar100",
    folder="cifar-100-python",
    train=("train",),
    test=("test",),
    classes=100,
    label_key="fine_labels",
    hint=_CIFAR_HINT.format("cifar-100-python/ with train"),
    torchvision="CIFAR100",
)
_IMAGENET32 = PickledSet(
    name="imagenet32",
    train=tuple(f"train_data_batch_{number}" for number in range(1, 11)),
    test=("val_data",),
    classes=1000,
    first_label=1,
    hint="root must hold train_data_batch_1 to train_data_batch_10 and val_data; get Imagenet32_train.zip and "
    "Imagenet32_val.zip (an account is needed) from https://image-net.org/download-images and unpack both there",
)


def cifar10(options: Cifar10Options) -> DataSet:
    """Open CIFAR-10: uint8 [3, 32, 32], 10 classes.

    Raises:
        SpecError: files are missing or broken, or the download fails.
    """
    return _open(_CIFAR10, options, CIFAR10.facts(options), download=options.download)


def cifar100(options: Cifar100Options) -> DataSet:
    """Open CIFAR-100 with its fine labels: uint8 [3, 32, 32], 100 classes.

    Raises:
        SpecError: files are missing or broken, or the download fails.
    """
    return _open(_CIFAR100, options, CIFAR100.facts(options), download=options.download)


def imagenet32(options: ImageNet32Options) -> DataSet:
    """Open downsampled ImageNet: uint8 [3, 32, 32], 1000 classes; it takes 4.1 GB of memory.

    Raises:
        SpecError: files are missing or broken.
    """
    return _open(_IMAGENET32, options, IMAGENET32.facts(options), download=False)


def _open(
    published: PickledSet,
    options: Cifar10Options | Cifar100Options | ImageNet32Options,
    facts: DataFacts,
    *,
    download: bool,
) -> DataSet:
    root = expanded(options.root)
    needs = [*published.train, *published.test]
    candidates = list(dict.fromkeys([root / published.folder, root]))
    if download and not any(all((folder / file).is_file() for file in needs) for folder in candidates):
        _download(published, root)
    folder = find_folder(published.name, candidates, needs, hint=published.hint)
    return image_data_set(
        read_batches([folder / file for file in published.train], published),
        read_batches([folder / file for file in published.test], published),
        facts=facts,
        crop_padding=options.crop_padding,
        flip=options.flip,
    )


def _download(published: PickledSet, root: Path) -> None:
    from torchvision import datasets
    from torchvision.datasets.utils import download_and_extract_archive

    archive: Any = getattr(datasets, published.torchvision)
    try:
        download_and_extract_archive(archive.url, str(root), filename=archive.filename, md5=archive.tgz_md5)
    except (OSError, RuntimeError) as error:
        raise file_error(f"{published.name} cannot be fetched from {archive.url}: {error}", published.hint) from error
