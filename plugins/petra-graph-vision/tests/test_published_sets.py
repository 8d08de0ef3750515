"""CIFAR, Fashion-MNIST and downsampled ImageNet from files as they are published; and what every data set of images promises."""

import gzip
import pickle

import numpy as np
import pytest
import torch
from petra_graph_vision.folder_sets import ImageFolder, ImageNet
from petra_graph_vision.published_sets import Cifar10, Cifar100, FashionMnist, ImageNet32

from petra_graph.errors import SpecError
from petra_graph.testing import DataSetTrial
from tests.support import kit
from tests.support.kit import kept

PLAIN = {"crop_padding": 0, "flip": False}
TRANSFORMS = {
    "augment": ({"name": "RandAugment", "num_ops": 2}, {"name": "RandomErasing", "p": 0.5}),
    "mix": ({"name": "MixUp", "alpha": 0.4}, {"name": "CutMix"}),
}
ALL = {
    "cifar10": (Cifar10, "cifar_root", {}),
    "cifar100": (Cifar100, "cifar_root", {}),
    "fashion-mnist": (FashionMnist, "fashion_root", TRANSFORMS),
    "imagenet": (ImageNet, "folder_root", {"classes": 2, "test": "test", "size": 16, "resize": 20}),
    "imagenet32": (ImageNet32, "imagenet32_root", {}),
    "image-folder": (ImageFolder, "folder_root", {"size": 16, **TRANSFORMS}),
}


def opened(code, root, **options):
    return kit.opened(code, root=str(root), **options)


def fetched(split):
    images, targets = split.fetch(np.arange(len(split)), seed=0, epoch=0)
    return images.permute(0, 2, 3, 1).numpy(), targets.tolist()


@pytest.mark.parametrize("name", ALL)
def test_it_keeps_every_promise_and_has_channels_last_memory(name, request):
    declaration, files, options = ALL[name]
    root = request.getfixturevalue(files)
    kept(DataSetTrial.of(declaration, {"root": str(root), **options}))
    data = opened(declaration, root, **options)
    images, _ = data.train.fetch(np.array([4, 0, 2]), seed=0, epoch=0)
    assert images.shape == (3, *data.facts.shape)
    assert images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("half", ["train", "test"])
@pytest.mark.parametrize(("declaration", "theirs"), [(Cifar10, "CIFAR10"), (Cifar100, "CIFAR100")], ids=["10", "100"])
def test_cifar_is_torchvisions(declaration, theirs, half, cifar_root):
    from torchvision import datasets

    expected = getattr(datasets, theirs)(str(cifar_root), train=half == "train")
    images, targets = fetched(getattr(opened(declaration, cifar_root, **PLAIN), half))
    np.testing.assert_array_equal(expected.data, images)
    assert expected.targets == targets


def test_imagenet32_counts_labels_from_one(imagenet32_root, make_planes):
    data = opened(ImageNet32, imagenet32_root, **PLAIN)
    images, targets = fetched(data.train)
    assert [0, 0, 1, 1, *range(2, 10)] == targets
    np.testing.assert_array_equal(make_planes(2, 1).reshape(-1, 3, 32, 32), images[:2].transpose(0, 3, 1, 2))
    assert fetched(data.test)[1] == [999] * 5


@pytest.mark.parametrize("half", ["train", "test"])
def test_fashion_mnist_is_torchvisions_also_from_compressed_files_in_the_root_itself(fashion_root, half):
    from torchvision import datasets

    expected = datasets.FashionMNIST(str(fashion_root), train=half == "train")
    for compressed in (False, True):
        if compressed:
            for path in (fashion_root / "FashionMNIST" / "raw").iterdir():
                (fashion_root / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
                path.unlink()
        images, targets = fetched(getattr(opened(FashionMnist, fashion_root, **PLAIN), half))
        np.testing.assert_array_equal(expected.data, images[..., 0])
        assert expected.targets.tolist() == targets


class Code:
    def __reduce__(self):
        return print, ("run",)


def test_wrong_files_are_refused_with_a_remedy(cifar_root, fashion_root, imagenet32_root, capsys):
    def refused(declaration, root):
        with pytest.raises(SpecError) as caught:
            opened(declaration, root)
        (problem,) = caught.value.problems
        assert (problem.path, bool(problem.hint)) == (("root",), True)
        return problem.message

    (cifar_root / "cifar-10-batches-py" / "test_batch").write_bytes(b"damaged")
    assert "the files of CIFAR10 in" in refused(Cifar10, cifar_root)
    assert "not found or corrupted" in refused(Cifar10, cifar_root)
    raw = fashion_root / "FashionMNIST" / "raw"
    (raw / "train-images-idx3-ubyte").write_bytes(b"<html>")
    assert "the files of FashionMNIST in" in refused(FashionMnist, fashion_root)
    (raw / "t10k-labels-idx1-ubyte").unlink()
    (raw / "train-images-idx3-ubyte").unlink()
    assert "there is no train-images-idx3-ubyte" in refused(FashionMnist, fashion_root)
    (imagenet32_root / "val_data").write_bytes(pickle.dumps({"data": Code(), "labels": []}))
    assert "it names builtins.print, and only arrays are read" in refused(ImageNet32, imagenet32_root)
    assert capsys.readouterr().out == ""
