"""Fashion-MNIST from idx files."""

from __future__ import annotations

import numpy as np
import pytest
from petra_graph_vision.data_set_options import FashionMnistOptions
from petra_graph_vision.fashion_mnist import fashion_mnist

from petra_graph.errors import SpecError


def fetched(split):
    images, targets = split.fetch(np.arange(len(split)), seed=0, epoch=0)
    return images[:, 0].tolist(), targets.tolist()


def opened(root):
    return fashion_mnist(FashionMnistOptions(root=str(root), crop_padding=0, flip=False))


LABELS = "train-labels-idx1-ubyte"


def refused(root):
    with pytest.raises(SpecError) as caught:
        opened(root)
    (problem,) = caught.value.problems
    assert problem.path == ("root",)
    return problem.message


@pytest.mark.parametrize("half", ["train", "test"])
def test_the_samples_are_torchvisions(fashion_root, half):
    from torchvision.datasets import FashionMNIST

    torchvision = FashionMNIST(str(fashion_root), train=half == "train")
    expected = torchvision.data.tolist(), torchvision.targets.tolist()
    assert expected == fetched(getattr(opened(fashion_root), half))


def test_reads_gzipped_files_in_root_itself(fashion_root, gzip_files, tmp_path_factory):
    folder = gzip_files(fashion_root / "FashionMNIST" / "raw", tmp_path_factory.mktemp("flat"))
    assert fetched(opened(fashion_root).test) == fetched(opened(folder).test)


def test_missing_files_are_named(fashion_root):
    folder = fashion_root / "FashionMNIST" / "raw"
    (folder / "t10k-labels-idx1-ubyte").unlink()
    assert f"{folder} lacks t10k-labels-idx1-ubyte;" in refused(fashion_root)


@pytest.mark.parametrize(
    ("message", "file", "content"),
    [
        ("must be an idx file of unsigned bytes in 3 dimensions", "train-images-idx3-ubyte", b"<html>"),
        ("must be an idx file of unsigned bytes in 1 dimensions", LABELS, b"\0\0\x08\x03"),
        ("must have 12 bytes after its head for its shape [12] (got 3)", LABELS, b"\0\0\x08\1\0\0\0\x0c123"),
        ("must have 1 bytes after its head for its shape [1] (got 2)", LABELS, b"\0\0\x08\1\0\0\0\x0123"),
        ("must be an idx file of unsigned bytes in 3 dimensions", "train-images-idx3-ubyte", b"\0\0\x08\3\0\0\0\1"),
        (
            "bytes after its head for its shape [4294967295, 4294967295, 4294967295] (got 0)",
            "train-images-idx3-ubyte",
            b"\0\0\x08\3" + b"\xff" * 12,
        ),
        ("must have a label for each image (got 1 for 12)", LABELS, b"\0\0\x08\1\0\0\0\1\0"),
        ("must lie in 0 .. 9 (got 10)", LABELS, b"\0\0\x08\1\0\0\0\x0c" + b"\x0a" * 12),
    ],
)
def test_a_broken_file_is_refused(message, file, content, fashion_root):
    path = fashion_root / "FashionMNIST" / "raw" / file
    path.write_bytes(content)
    came = refused(fashion_root)
    assert str(path) in came
    assert message in came


def test_a_broken_archive_is_refused(fashion_root, gzip_files, tmp_path_factory):
    folder = gzip_files(fashion_root / "FashionMNIST" / "raw", tmp_path_factory.mktemp("flat"))
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    assert refused(folder).startswith(f"{path} cannot be read: ")
