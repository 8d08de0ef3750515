"""Tiny data sets, written in the real formats."""

from __future__ import annotations

import gzip
import pickle
import struct
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

from tests.conftest import here, install, one_thread, saved_run, saved_runs, shared_folder, site, write  # noqa: F401

TRAIN, TEST = 12, 5
"""Samples that each half of a written data set has."""


class Python2Pickler(pickle._Pickler):
    """Writes byte strings as Python 2 does, as the published CIFAR files have them."""

    def save_binstring(self, value):
        raw = value if isinstance(value, bytes) else value.encode("ascii")
        self.write(b"T" + struct.pack("<i", len(raw)) + raw)

    dispatch: ClassVar = pickle._Pickler.dispatch | {bytes: save_binstring, str: save_binstring}


@pytest.fixture
def write_pickle():
    def dump(path: Path, value, *, python2: bool = False):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            Python2Pickler(file, 2).dump(value) if python2 else pickle.dump(value, file)
        if python2:  # numpy 1's name of the module
            path.write_bytes(path.read_bytes().replace(b"cnumpy._core.", b"cnumpy.core."))
        return value

    return dump


@pytest.fixture
def make_planes():
    def make(n: int, seed: int = 0, size: int = 32):
        return np.random.default_rng(seed).integers(0, 256, (n, 3 * size * size), dtype=np.uint8)

    return make


@pytest.fixture
def cifar10_root(tmp_path, write_pickle, make_planes):
    """CIFAR-10's layout; the five training batches have 4, 2, 2, 2, 2 images."""
    folder = tmp_path / "cifar-10-batches-py"
    for number, n in enumerate((4, 2, 2, 2, 2), start=1):
        batch = {"batch_label": f"training batch {number} of 5", "labels": [number] * n, "data": make_planes(n, number)}
        write_pickle(folder / f"data_batch_{number}", batch, python2=True)
    write_pickle(folder / "test_batch", {"labels": list(range(TEST)), "data": make_planes(TEST)}, python2=True)
    return tmp_path


@pytest.fixture
def cifar100_root(tmp_path, write_pickle, make_planes):
    folder = tmp_path / "cifar-100-python"
    for name, n in (("train", TRAIN), ("test", TEST)):
        batch = {"fine_labels": [99 - i for i in range(n)], "coarse_labels": [0] * n, "data": make_planes(n)}
        write_pickle(folder / name, batch)
    return tmp_path


@pytest.fixture
def imagenet32_root(tmp_path, write_pickle, make_planes):
    """Downsampled ImageNet's layout; the ten training batches have 2, 2, 1, 1, ... images."""
    mean = np.full(3072, 0.5)
    for number, n in enumerate((2, 2, *[1] * 8), start=1):
        batch = {"data": make_planes(n, number), "labels": [number] * n, "mean": mean}
        write_pickle(tmp_path / f"train_data_batch_{number}", batch)
    write_pickle(tmp_path / "val_data", {"data": make_planes(TEST), "labels": [1000] * TEST, "mean": mean})
    return tmp_path


def write_idx(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    path.write_bytes(head + values.astype(np.uint8).tobytes())


@pytest.fixture
def fashion_root(tmp_path):
    """Fashion-MNIST as torchvision lays it out."""
    generator = np.random.default_rng(0)
    for name, n in (("train", TRAIN), ("t10k", TEST)):
        folder = tmp_path / "FashionMNIST" / "raw"
        write_idx(folder / f"{name}-images-idx3-ubyte", generator.integers(0, 256, (n, 28, 28)))
        write_idx(folder / f"{name}-labels-idx1-ubyte", np.arange(n) % 10)
    return tmp_path


@pytest.fixture
def gzip_files():
    def compress(folder: Path, out: Path) -> Path:
        for path in folder.iterdir():
            (out / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        return out

    return compress


@pytest.fixture
def write_images():
    def save(root: Path, half: str, counts: dict[str, int], *, size=(40, 30), suffix=".jpg"):
        generator = np.random.default_rng(len(half))
        for name, n in counts.items():
            (root / half / name).mkdir(parents=True, exist_ok=True)
            for number in range(n):
                pixels = generator.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / half / name / f"{number:04}{suffix}")

    return save


@pytest.fixture
def folder_root(tmp_path, write_images):
    """Two classes of noise, 40 x 30 pixels."""
    write_images(tmp_path, "train", {"cat": 7, "dog": 5})
    write_images(tmp_path, "test", {"cat": 2, "dog": 3})
    return tmp_path
