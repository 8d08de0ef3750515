"""CIFAR and downsampled ImageNet, from files as they are published."""

from __future__ import annotations

import os

import numpy as np
import pytest
from petra_graph_vision import pickled_sets
from petra_graph_vision.data_set_options import Cifar10Options, Cifar100Options, ImageNet32Options
from petra_graph_vision.pickled_sets import cifar10, cifar100, imagenet32

from petra_graph.errors import SpecError


def images_of(planes, size=32):
    return planes.reshape(-1, 3, size, size)


def fetched(split):
    images, targets = split.fetch(np.arange(len(split)), seed=0, epoch=0)
    return images.numpy(), targets.tolist()


def plain(cls, root):
    return cls(root=str(root), crop_padding=0, flip=False)


def test_cifar10_reads_all_batches_in_order(cifar10_root, make_planes):
    expected = np.concatenate([images_of(make_planes(n, number)) for number, n in enumerate((4, 2, 2, 2, 2), start=1)])
    data = cifar10(plain(Cifar10Options, cifar10_root))
    images, targets = fetched(data.train)
    np.testing.assert_array_equal(expected, images)
    assert targets == [1] * 4 + [2] * 2 + [3] * 2 + [4] * 2 + [5] * 2
    images, targets = fetched(data.test)
    np.testing.assert_array_equal(images_of(make_planes(5)), images)
    assert targets == [0, 1, 2, 3, 4]


def test_cifar100_reads_the_fine_labels(cifar100_root, make_planes):
    images, targets = fetched(cifar100(plain(Cifar100Options, cifar100_root)).train)
    np.testing.assert_array_equal(images_of(make_planes(12)), images)
    assert list(range(99, 87, -1)) == targets


def test_imagenet32_counts_labels_from_one(imagenet32_root):
    data = imagenet32(plain(ImageNet32Options, imagenet32_root))
    assert [0, 0, 1, 1, *range(2, 10)] == fetched(data.train)[1]
    assert fetched(data.test)[1] == [999] * 5


def test_root_may_be_the_folder_itself(cifar10_root):
    assert len(cifar10(plain(Cifar10Options, cifar10_root / "cifar-10-batches-py")).train) == 12


def test_root_expands_home_and_variables(cifar10_root, monkeypatch):
    monkeypatch.setenv("HOME", str(cifar10_root.parent))
    monkeypatch.setenv("SET", cifar10_root.name)
    assert len(cifar10(plain(Cifar10Options, "~/$SET")).train) == 12


def refused(build, options):
    with pytest.raises(SpecError) as caught:
        build(options)
    (problem,) = caught.value.problems
    assert problem.path == ("root",)
    return problem


def test_missing_files_are_named_with_a_remedy(tmp_path):
    problem = refused(cifar10, Cifar10Options(root=str(tmp_path)))
    assert problem.message == (
        f"the files of cifar10 are not there: {tmp_path}/cifar-10-batches-py is not a folder; {tmp_path} has none of "
        "data_batch_1, data_batch_2, data_batch_3, data_batch_4 and 2 more"
    )
    assert problem.hint == (
        "root must hold cifar-10-batches-py/ with data_batch_1 and the others; set download = true, or unpack the "
        "python version from https://www.cs.toronto.edu/~kriz/cifar.html there"
    )


def test_a_home_that_does_not_exist():
    assert refused(cifar10, Cifar10Options(root="~of-nobody")).message == "no home directory is known for '~of-nobody'"


def test_a_missing_batch_is_named(imagenet32_root):
    (imagenet32_root / "train_data_batch_7").unlink()
    problem = refused(imagenet32, ImageNet32Options(root=str(imagenet32_root)))
    assert problem.message == f"the files of imagenet32 are not there: {imagenet32_root} lacks train_data_batch_7"


def test_a_failed_download_is_reported(tmp_path, monkeypatch):
    def no_network(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr("torchvision.datasets.utils.download_and_extract_archive", no_network)
    problem = refused(cifar10, Cifar10Options(root=str(tmp_path), download=True))
    assert problem.message.startswith("cifar10 cannot be fetched from https://www.cs.toronto.edu/")
    assert problem.message.endswith("no route to host")


def test_no_file_is_downloaded_without_the_option_or_twice(cifar10_root, tmp_path_factory, monkeypatch):
    def never(*args):
        raise AssertionError("a download began")

    monkeypatch.setattr(pickled_sets, "_download", never)
    cifar10(Cifar10Options(root=str(cifar10_root), download=True))
    refused(cifar10, Cifar10Options(root=str(tmp_path_factory.mktemp("empty")), download=False))


class Malicious:
    def __reduce__(self):
        return os.mkdir, ("never",)


def test_a_pickle_that_runs_code_is_not_run(cifar10_root, write_pickle, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    write_pickle(cifar10_root / "cifar-10-batches-py" / "test_batch", Malicious())
    problem = refused(cifar10, Cifar10Options(root=str(cifar10_root)))
    assert problem.message.endswith("it names posix.mkdir, but only arrays are allowed")
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(
    ("message", "batch"),
    [
        ("must hold a dictionary (got list)", [1, 2]),
        ("must hold 'data' and 'labels' (got ['data'])", {"data": np.zeros((1, 3072), np.uint8)}),
        ("must be uint8[2, 3072] (got uint8[1, 3072])", {"data": np.zeros((1, 3072), np.uint8), "labels": [1, 2]}),
        ("must be uint8[1, 3072] (got float64[1, 3072])", {"data": np.zeros((1, 3072)), "labels": [1]}),
        ("must be uint8[1, 3072] (got list)", {"data": [0], "labels": [1]}),
        ("must lie in 0 .. 9 (got 3 .. 10)", {"data": np.zeros((2, 3072), np.uint8), "labels": [10, 3]}),
        ("must be a list of whole numbers", {"data": np.zeros((1, 3072), np.uint8), "labels": ["cat"]}),
    ],
)
def test_a_batch_of_another_make_is_refused(message, batch, cifar10_root, write_pickle):
    path = cifar10_root / "cifar-10-batches-py" / "data_batch_3"
    write_pickle(path, batch)
    problem = refused(cifar10, Cifar10Options(root=str(cifar10_root)))
    assert str(path) in problem.message
    assert message in problem.message


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a pickle",
        b"\x80\x02}q\x00(",
        b"c_codecs\nencode\n(Vx\nVno-such-codec\ntR.",  # LookupError
        b"cbuiltins\nbytearray\n(I9223372036854775807\ntR.",  # MemoryError, which says nothing
        b"cbuiltins\nbytearray\n(I99999999999999999999\ntR.",  # OverflowError
    ],
)
def test_a_broken_file_is_refused(content, cifar10_root):
    path = cifar10_root / "cifar-10-batches-py" / "data_batch_3"
    path.write_bytes(content)
    problem = refused(cifar10, Cifar10Options(root=str(cifar10_root)))
    assert problem.message.startswith(f"{path} cannot be read as a pickled batch: ")
    assert not problem.message.endswith(": ")
