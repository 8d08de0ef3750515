"""Tiny data sets, written in the real formats."""

import pickle
import struct
from hashlib import md5
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import here, install, one_thread, saved_run, saved_runs, shared_folder, site, write  # noqa: F401

TRAIN, TEST = 10, 5
"""Samples that each half of a written data set has."""


def write_pickle(path: Path, value) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value, protocol=2))


@pytest.fixture
def make_planes():
    def make(n: int, seed: int = 0, size: int = 32):
        return np.random.default_rng(seed).integers(0, 256, (n, 3 * size * size), dtype=np.uint8)

    return make


@pytest.fixture
def cifar_root(tmp_path, make_planes, monkeypatch):
    """CIFAR-10 and CIFAR-100 in their layouts, with other images, whose digests torchvision takes for the published ones."""
    from torchvision import datasets  # with torch's compiler, which every process that collects tests would import

    for published, key in ((datasets.CIFAR10, "labels"), (datasets.CIFAR100, "fine_labels")):
        folder = tmp_path / published.base_folder
        for list_name in ("train_list", "test_list"):
            written = []
            for number, (name, _) in enumerate(getattr(published, list_name)):
                n = TEST if list_name == "test_list" else TRAIN // len(published.train_list)
                write_pickle(folder / name, {key: [number] * n, "data": make_planes(n, number)})
                written.append([name, md5((folder / name).read_bytes()).hexdigest()])
            monkeypatch.setattr(published, list_name, written)
        write_pickle(folder / published.meta["filename"], {published.meta["key"]: ["a", "b"]})
        digest = md5((folder / published.meta["filename"]).read_bytes()).hexdigest()
        monkeypatch.setattr(published, "meta", {**published.meta, "md5": digest})
    return tmp_path


@pytest.fixture
def imagenet32_root(tmp_path, make_planes):
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
