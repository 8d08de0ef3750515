"""Fashion-MNIST in its published idx files, plain or gzipped.

The files are in root/FashionMNIST/raw, as torchvision writes them, or in root itself, as Debian's package
`dataset-fashion-mnist` installs them in /usr/share/datasets/fashion-mnist.

Decision: numpy reads the values, and the head is read here. torchvision's reader of idx files does not read gzipped ones, and stops at a
damaged one with an assertion that names no file.

Source: Xiao, Rasul and Vollgraf 2017, arXiv:1708.07747; the format: http://yann.lecun.com/exdb/mnist.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from petra_graph.catalog.datasets.splits import image_data_set
from petra_graph.plugins import DataSet
from petra_graph_vision.data_set_options import FashionMnistOptions
from petra_graph_vision.declared import FASHION_MNIST
from petra_graph_vision.files import check_official, expanded, file_error, find_folder
from petra_graph_vision.transforms import augmented

_SPLITS = (
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)
_FILES = [name for split in _SPLITS for name in split]
_HINT = (
    "root must hold FashionMNIST/raw/ with the four files, plain or as .gz, or the files themselves; set "
    "download = true, or get them from https://github.com/zalandoresearch/fashion-mnist (Debian: "
    'apt install dataset-fashion-mnist and root = "/usr/share/datasets/fashion-mnist")'
)
_UBYTE = 8
"""The idx format's number for unsigned bytes."""
_CLASSES = 10


def fashion_mnist(options: FashionMnistOptions) -> DataSet:
    """Open Fashion-MNIST: uint8 [1, 28, 28], 10 classes.

    Raises:
        SpecError: files are missing or broken, or the download fails.
    """
    root = expanded(options.root)
    candidates = (root / "FashionMNIST" / "raw", root)
    if options.download and not any(_suffix(folder) is not None for folder in candidates):
        _download(root)
    suffix = next((suffix for suffix in map(_suffix, candidates) if suffix is not None), "")
    folder = find_folder("fashion-mnist", candidates, [name + suffix for name in _FILES], hint=_HINT)
    check_official(folder, _digests(), hint=_HINT)
    train, test = (_split(folder / f"{images}{suffix}", folder / f"{labels}{suffix}") for images, labels in _SPLITS)
    facts = FASHION_MNIST.facts(options)
    opened = image_data_set(train, test, facts=facts, crop_padding=options.crop_padding, flip=options.flip)
    return augmented(opened, options)


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Return an idx file of unsigned bytes: two zero bytes, the type, the number of dimensions, each size, the values.

    Raises:
        SpecError: the file is not an idx file, has another number of dimensions, or is cut short.
    """
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            content = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise file_error(f"{path} cannot be read: {error}", _HINT) from error
    begin = 4 + 4 * dimensions
    if content[:4] != bytes([0, 0, _UBYTE, dimensions]) or len(content) < begin:
        kind = f"an idx file of unsigned bytes in {dimensions} dimensions"
        raise file_error(f"{path} must be {kind} (starts with {content[:4]!r})", _HINT)
    shape = [int.from_bytes(content[at : at + 4]) for at in range(4, begin, 4)]
    if (got := len(content) - begin) != (length := math.prod(shape)):
        raise file_error(f"{path} must have {length} bytes after its head for its shape {shape} (got {got})", _HINT)
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)


def _split(images: Path, labels: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    pixels, targets = read_idx(images, 3), read_idx(labels, 1)
    if pixels.shape[1:] != (28, 28):
        raise file_error(f"images in {images} must be 28 x 28 (got {pixels.shape[1]} x {pixels.shape[2]})", _HINT)
    if len(pixels) != len(targets):
        raise file_error(f"{labels} must have a label for each image (got {len(targets)} for {len(pixels)})", _HINT)
    if len(targets) and targets.max() >= _CLASSES:
        raise file_error(f"labels in {labels} must lie in 0 .. {_CLASSES - 1} (got {targets.max()})", _HINT)
    return pixels[..., np.newaxis], targets.astype(np.int64)


def _suffix(folder: Path) -> str | None:
    """Return the ending of the files' names in `folder`; None where a file is missing."""
    return next((end for end in ("", ".gz") if all((folder / f"{name}{end}").is_file() for name in _FILES)), None)


def _digests() -> Mapping[str, str]:
    """Return the MD5 digest of each published file, as torchvision knows them."""
    from torchvision.datasets import FashionMNIST

    return dict(FashionMNIST.resources)


def _download(root: Path) -> None:
    from torchvision.datasets import FashionMNIST

    try:
        FashionMNIST(str(root), download=True)
    except (OSError, RuntimeError) as error:
        raise file_error(f"fashion-mnist cannot be fetched from {FashionMNIST.mirrors[0]}: {error}", _HINT) from error
