"""CIFAR and Fashion-MNIST, whose published files torchvision reads, and downsampled ImageNet, of which it has no reader.

Sources: Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html; Xiao, Rasul and Vollgraf 2017, arXiv:1708.07747; Chrabaszcz, Loshchilov
and Hutter 2017, arXiv:1707.08819.
"""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray

from petra_graph.plugins import DataSet, DataSetDeclaration, option
from petra_graph_vision.images import CroppedOptions, cropped, expanded, facts, mean_of, reading, std_of

IMAGENET_TRAINING = 1_281_167


@frozen(kw_only=True)
class PublishedOptions(CroppedOptions):
    """Published files, which can be fetched: CIFAR-10."""

    download: bool = option("download missing files into root; without this, no file is downloaded", default=False)
    mean: tuple[float, ...] = mean_of(0.4914, 0.4822, 0.4465)
    std: tuple[float, ...] = std_of(0.2470, 0.2435, 0.2616)


@frozen(kw_only=True)
class Cifar100Options(PublishedOptions):
    """Published files of CIFAR-100; targets are the 100 fine classes."""

    mean: tuple[float, ...] = mean_of(0.5071, 0.4865, 0.4409)
    std: tuple[float, ...] = std_of(0.2673, 0.2564, 0.2762)


@frozen(kw_only=True)
class FashionMnistOptions(PublishedOptions):
    """Published files of Fashion-MNIST, whose images are grey; plain, or as .gz in root itself."""

    mean: tuple[float, ...] = mean_of(0.2860)
    std: tuple[float, ...] = std_of(0.3530)


@frozen(kw_only=True)
class ImageNet32Options(CroppedOptions):
    """Published files of downsampled ImageNet."""

    mean: tuple[float, ...] = mean_of(0.4811, 0.4575, 0.4078)
    std: tuple[float, ...] = std_of(0.2605, 0.2533, 0.2683)


def cifar(options: PublishedOptions) -> DataSet:
    """Open CIFAR-10 or CIFAR-100: uint8 [3, 32, 32]; torchvision compares the files with their published digests.

    Raises:
        SpecError: files are missing or damaged, or the download fails.
    """
    from torchvision import datasets

    fine = isinstance(options, Cifar100Options)
    archive: Any = datasets.CIFAR100 if fine else datasets.CIFAR10
    root = expanded(options.root)
    hint = f"root must hold {archive.base_folder}/ with the published python batches; or set download = true"
    with reading(f"the files of {archive.__name__} in {root}", hint):
        parts = [archive(str(root), train, download=options.download) for train in (True, False)]
    splits = [(np.ascontiguousarray(one.data), np.array(one.targets, np.int64)) for one in parts]
    return cropped(splits, (CIFAR100 if fine else CIFAR10).facts(options), options)


def fashion_mnist(options: FashionMnistOptions) -> DataSet:
    """Open Fashion-MNIST: uint8 [1, 28, 28], 10 classes.

    The files are in root/FashionMNIST/raw, as torchvision writes them, or, plain or as .gz, in root itself, as Debian's package
    `dataset-fashion-mnist` installs them.

    Raises:
        SpecError: files are missing or damaged, or the download fails.
    """
    from torchvision.datasets import FashionMNIST
    from torchvision.datasets.mnist import read_image_file, read_label_file

    root = expanded(options.root)
    hint = (
        "root must hold FashionMNIST/raw/ with the four files, plain or as .gz, or the files themselves; set download = true, or install "
        'Debian\'s dataset-fashion-mnist, with root = "/usr/share/datasets/fashion-mnist"'
    )
    folders = [root / "FashionMNIST" / "raw", root]

    def read(file: str, of: Callable[[str], torch.Tensor]) -> NDArray[np.uint8]:
        there = [path for folder in folders for end in ("", ".gz") if (path := folder / f"{file}{end}").is_file()]
        if not there:
            raise FileNotFoundError(f"there is no {file}")
        found = there[0]
        if found.suffix != ".gz":
            return of(str(found)).numpy()
        with TemporaryDirectory() as folder:
            plain = Path(folder, file)
            plain.write_bytes(gzip.decompress(found.read_bytes()))
            return of(str(plain)).numpy()

    with reading(f"the files of FashionMNIST in {root}", hint):
        if options.download:
            FashionMNIST(str(root), download=True)
        splits = [
            (
                read(f"{part}-images-idx3-ubyte", read_image_file)[..., np.newaxis],
                read(f"{part}-labels-idx1-ubyte", read_label_file),
            )
            for part in ("train", "t10k")
        ]
    return cropped(
        [(pixels, targets.astype(np.int64)) for pixels, targets in splits], FASHION_MNIST.facts(options), options
    )


def imagenet32(options: ImageNet32Options) -> DataSet:
    """Open downsampled ImageNet: uint8 [3, 32, 32], 4.1 GB in memory. Its files count labels from 1; their "mean" image is not used.

    Raises:
        SpecError: files are missing or damaged.
    """
    root = expanded(options.root)
    hint = (
        "root must hold train_data_batch_1 to train_data_batch_10 and val_data; get Imagenet32_train.zip and Imagenet32_val.zip (an account "
        "is needed) from https://image-net.org/download-images and unpack both there"
    )
    batches = [root / f"train_data_batch_{number}" for number in range(1, 11)]
    with reading(f"the files of imagenet32 in {root}", hint):
        splits = [_joined(batches), _joined([root / "val_data"])]
    return cropped(splits, IMAGENET32.facts(options), options)


class _Arrays(pickle.Unpickler):
    """Reads arrays: of what a file names, only what numpy's own pickles name is found."""

    def find_class(self, module: str, name: str, /) -> Any:
        if (module.replace("._core", ".core"), name) not in _NUMPYS:
            raise pickle.UnpicklingError(f"it names {module}.{name}, and only arrays are read")
        return super().find_class(module, name)


_NUMPYS = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


def _joined(files: Sequence[Path]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the pixels [n, 32, 32, 3] and the targets [n] of pickled batches; each is a dictionary with "data" [n, 3 * 32 * 32], planes first, and "labels" from 1."""
    # A file is longer than its pixels, and unused pages take no memory; joining the batches at the end would take twice as much.
    pixels = np.empty((sum(path.stat().st_size for path in files) // 3072, 32, 32, 3), np.uint8)
    targets: list[NDArray[np.int64]] = []
    read = 0
    for path in files:
        with path.open("rb") as file:
            entry = _Arrays(file, encoding="latin1").load()
        planes = entry["data"].reshape(-1, 3, 32, 32)
        pixels[read : read + len(planes)] = planes.transpose(0, 2, 3, 1)
        targets.append(np.array(entry["labels"], np.int64) - 1)
        read += len(planes)
    return pixels[:read], np.concatenate(targets)


CIFAR10 = DataSetDeclaration(
    options=PublishedOptions,
    summary="CIFAR-10: 60,000 images 3x32x32 of 10 classes, in its python (pickle) files.",
    build=f"{__name__}:cifar",
    training_samples=lambda _: 50_000,
    facts=facts(3, 32, 10, "airplane automobile bird cat deer dog frog horse ship truck"),
)
CIFAR100 = DataSetDeclaration(
    options=Cifar100Options,
    summary="CIFAR-100: 60,000 images 3x32x32 of 100 classes, in its python (pickle) files.",
    build=f"{__name__}:cifar",
    training_samples=lambda _: 50_000,
    facts=facts(3, 32, 100),
)
FASHION_MNIST = DataSetDeclaration(
    options=FashionMnistOptions,
    summary="Fashion-MNIST: 70,000 grey images 1x28x28 of 10 classes, in its idx (ubyte) files.",
    build=f"{__name__}:fashion_mnist",
    training_samples=lambda _: 60_000,
    facts=facts(1, 28, 10, "t-shirt/top trouser pullover dress coat sandal shirt sneaker bag ankle-boot"),
)
IMAGENET32 = DataSetDeclaration(
    options=ImageNet32Options,
    summary="Downsampled ImageNet: 1,331,167 images 3x32x32 of 1000 classes, in its pickled batches.",
    build=f"{__name__}:imagenet32",
    training_samples=lambda _: IMAGENET_TRAINING,
    facts=facts(3, 32, 1000),
)
