"""Files with the names of published ones: anyone's own, the published ones, or damaged copies of them."""

from __future__ import annotations

from hashlib import md5

import pytest
from petra_graph_vision.data_set_options import Cifar10Options, FashionMnistOptions
from petra_graph_vision.fashion_mnist import fashion_mnist
from petra_graph_vision.files import check_official
from petra_graph_vision.pickled_sets import cifar10

from petra_graph.errors import SpecError


def digests(folder, names):
    return {name: md5((folder / name).read_bytes()).hexdigest() for name in names}


@pytest.fixture
def files(tmp_path):
    for name in "abc":
        (tmp_path / name).write_bytes(name.encode() * 1000)
    return tmp_path


def test_published_files_and_ones_own_are_read(files):
    check_official(files, digests(files, "abc"), hint="")
    check_official(files, dict.fromkeys("abc", "0" * 32), hint="")
    check_official(files, {**digests(files, "ab"), "not there": "0" * 32}, hint="")
    check_official(files, {}, hint="")


def test_a_damaged_copy_is_named_with_both_digests(files):
    published = digests(files, "abc")
    (files / "b").write_bytes(b"b" * 999 + b"c")
    with pytest.raises(SpecError) as caught:
        check_official(files, published, hint="fetch it again")
    (problem,) = caught.value.problems
    found = digests(files, "b")["b"]
    expected = f"{files / 'b'} is damaged: its MD5 digest is {found}, and that of the published file is {published['b']}; 2 of 3 files are right"
    assert problem.message.startswith(expected)
    assert problem.path == ("root",)


def test_cifar10(cifar10_root, monkeypatch):
    from torchvision.datasets import CIFAR10

    folder = cifar10_root / "cifar-10-batches-py"
    names = [name for name, _ in [*CIFAR10.train_list, *CIFAR10.test_list]]
    published = list(digests(folder, names).items())
    monkeypatch.setattr(CIFAR10, "train_list", published[:5])
    monkeypatch.setattr(CIFAR10, "test_list", published[5:])
    cifar10(Cifar10Options(root=str(cifar10_root)))
    content = bytearray((folder / "data_batch_3").read_bytes())
    content[len(content) // 2] ^= 1  # in a pixel: nothing else would tell
    (folder / "data_batch_3").write_bytes(content)
    with pytest.raises(SpecError, match="data_batch_3 is damaged"):
        cifar10(Cifar10Options(root=str(cifar10_root)))


def test_fashion_mnist(fashion_root, gzip_files, tmp_path_factory, monkeypatch):
    from torchvision.datasets import FashionMNIST

    folder = gzip_files(fashion_root / "FashionMNIST" / "raw", tmp_path_factory.mktemp("flat"))
    names = [name for name, _ in FashionMNIST.resources]
    published = digests(folder, names)
    fashion_mnist(FashionMnistOptions(root=str(folder)))
    published[names[2]] = "0" * 32
    monkeypatch.setattr(FashionMNIST, "resources", list(published.items()))
    with pytest.raises(SpecError, match=r"t10k-images-idx3-ubyte\.gz is damaged"):
        fashion_mnist(FashionMnistOptions(root=str(folder)))
