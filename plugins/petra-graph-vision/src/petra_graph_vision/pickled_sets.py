"""CIFAR-10, CIFAR-100 and downsampled ImageNet in their published pickled batches.

Decision: torchvision downloads CIFAR's files but does not read them: it unpickles, so it must refuse any file whose checksum is not the
published one, and a folder made from the same images (`tools/make_cifar10_batches.py`) is as good to train on. It has no reader of downsampled
ImageNet. So one reader, which runs nothing of a file (`array_pickle`), reads all three.

Downsampled ImageNet counts its labels from 1. Its files also hold the "mean" image, which the data set ignores, since
normalisation is by channel.

Sources: Krizhevsky 2009, "Learning multiple layers of features from tiny images",
https://www.cs.toronto.edu/~kriz/cifar.html; Chrabaszcz, Loshchilov and Hutter 2017, arXiv:1707.08819,
https://image-net.org/download-images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from petra_graph.catalog.datasets.splits import image_data_set
from petra_graph.plugins import DataSet, DataSetDeclaration
from petra_graph_vision.array_pickle import ArrayPickleError, read_array_pickle
from petra_graph_vision.data_set_options import Cifar10Options, Cifar100Options, ImageNet32Options
from petra_graph_vision.declared import CIFAR10, CIFAR100, IMAGENET32
from petra_graph_vision.files import check_official, expanded, file_error, find_folder
from petra_graph_vision.transforms import augmented

_SIDE = 32
"""Height and width in pixels."""
_ROW = 3 * _SIDE**2


@frozen(kw_only=True)
class PickledSet:
    """The published files of a data set: dictionaries with "data" [n, 3 * 32 * 32], planes first, and labels."""

    name: str
    folder: str = ""
    """The folder of the files below root; they may also be in root itself."""
    train: tuple[str, ...]
    test: tuple[str, ...]
    classes: int
    label_key: str = "labels"
    """The key of the labels in a dictionary."""
    first_label: int = 0
    hint: str
    """The layout and the source of the files, for messages."""
    torchvision: str = ""
    """The class in torchvision.datasets with the archive's address and checksum; "" where torchvision has no such class."""
    declaration: DataSetDeclaration

    def __call__(self, options: Cifar10Options | Cifar100Options | ImageNet32Options) -> DataSet:
        """Open the data set: uint8 [3, 32, 32], all in memory (downsampled ImageNet: 4.1 GB).

        Raises:
            SpecError: files are missing or broken, or the download fails.
        """
        root = expanded(options.root)
        needs = [*self.train, *self.test]
        candidates = list(dict.fromkeys([root / self.folder, root]))
        download = not isinstance(options, ImageNet32Options) and options.download
        if download and not any(all((folder / file).is_file() for file in needs) for folder in candidates):
            _download(self, root)
        folder = find_folder(self.name, candidates, needs, hint=self.hint)
        check_official(folder, self.digests, hint=self.hint)
        return augmented(
            image_data_set(
                read_batches([folder / file for file in self.train], self),
                read_batches([folder / file for file in self.test], self),
                facts=self.declaration.facts(options),
                crop_padding=options.crop_padding,
                flip=options.flip,
            ),
            options,
        )

    @property
    def digests(self) -> Mapping[str, str]:
        """The MD5 digest of each published file, as torchvision knows them; of downsampled ImageNet it knows none."""
        from torchvision import datasets

        known: Any = getattr(datasets, self.torchvision) if self.torchvision else None
        return {} if known is None else dict([*known.train_list, *known.test_list])


def read_batches(paths: Sequence[Path], published: PickledSet) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the pixels [n, 32, 32, 3] and the targets [n], counted from 0, of batch files in their order.

    Raises:
        SpecError: a file cannot be read or does not have the format.
    """
    # A file is longer than its pixels, so the files' lengths bound the number of images. An array's unused pages take no
    # memory; joining the batches at the end instead would need twice the memory (ImageNet32: 3.9 GB).
    most = sum(path.stat().st_size for path in paths) // _ROW
    pixels = np.empty((most, _SIDE, _SIDE, 3), np.uint8)
    targets = np.empty(most, np.int64)
    read = 0
    for path in paths:
        planes, labels = _read(path, published)
        upto = read + len(labels)
        pixels[read:upto] = planes.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
        targets[read:upto] = labels
        read = upto
    return pixels[:read], targets[:read]


def _read(path: Path, published: PickledSet) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        entry = read_array_pickle(path)
    except (ArrayPickleError, OSError, MemoryError) as error:
        reason = str(error) or type(error).__name__
        raise file_error(f"{path} cannot be read as a pickled batch: {reason}", published.hint) from error
    key = published.label_key
    if key not in entry or "data" not in entry:
        raise file_error(f"{path} must hold 'data' and {key!r} (got {sorted(map(str, entry))})", published.hint)
    data, raw = entry["data"], entry[key]
    try:
        if not isinstance(raw, list | np.ndarray) or not all(isinstance(label, int | np.integer) for label in raw):
            raise file_error(f"{key!r} in {path} must be a list of whole numbers", published.hint)
        labels = np.array(raw, np.int64) - published.first_label
    except OverflowError as error:
        raise file_error(f"{key!r} in {path} has a number of more than 64 bits", published.hint) from error
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (len(labels), _ROW):
        got = f"{data.dtype}{list(data.shape)}" if isinstance(data, np.ndarray) else type(data).__name__
        raise file_error(f"'data' in {path} must be uint8[{len(labels)}, {_ROW}] (got {got})", published.hint)
    if len(labels) and (labels.min() < 0 or labels.max() >= published.classes):
        low, high = published.first_label, published.first_label + published.classes - 1
        span = f"{labels.min() + published.first_label} .. {labels.max() + published.first_label}"
        raise file_error(f"labels in {path} must lie in {low} .. {high} (got {span})", published.hint)
    return data, labels


def _download(published: PickledSet, root: Path) -> None:
    from torchvision import datasets
    from torchvision.datasets.utils import download_and_extract_archive

    archive: Any = getattr(datasets, published.torchvision)
    try:
        download_and_extract_archive(archive.url, str(root), filename=archive.filename, md5=archive.tgz_md5)
    except (OSError, RuntimeError) as error:
        raise file_error(f"{published.name} cannot be fetched from {archive.url}: {error}", published.hint) from error


_CIFAR_HINT = (
    "root must hold {} and the others; set download = true, "
    "or unpack the python version from https://www.cs.toronto.edu/~kriz/cifar.html there"
)
cifar10 = PickledSet(
    declaration=CIFAR10,
    name="cifar10",
    folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test=("test_batch",),
    classes=10,
    hint=_CIFAR_HINT.format("cifar-10-batches-py/ with data_batch_1"),
    torchvision="CIFAR10",
)
cifar100 = PickledSet(
    declaration=CIFAR100,
    name="cifar100",
    folder="cifar-100-python",
    train=("train",),
    test=("test",),
    classes=100,
    label_key="fine_labels",
    hint=_CIFAR_HINT.format("cifar-100-python/ with train"),
    torchvision="CIFAR100",
)
imagenet32 = PickledSet(
    declaration=IMAGENET32,
    name="imagenet32",
    train=tuple(f"train_data_batch_{number}" for number in range(1, 11)),
    test=("val_data",),
    classes=1000,
    first_label=1,
    hint="root must hold train_data_batch_1 to train_data_batch_10 and val_data; get Imagenet32_train.zip and "
    "Imagenet32_val.zip (an account is needed) from https://image-net.org/download-images and unpack both there",
)
