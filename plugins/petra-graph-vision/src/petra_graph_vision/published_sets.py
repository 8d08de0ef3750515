"""CIFAR and Fashion-MNIST, whose published files torchvision reads, and downsampled ImageNet, of which it has no reader.

Sources: Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html; Xiao, Rasul and Vollgraf 2017, arXiv:1708.07747; Chrabaszcz, Loshchilov
and Hutter 2017, arXiv:1707.08819.
"""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from attrs import evolve
from numpy.typing import NDArray

from petra_graph.catalog.datasets.splits import ImageSplit
from petra_graph.plugins import DataFacts
from petra_graph_vision.images import Augment, Flip, GreyMean, GreyStd, Mean, Mix, Padding, Root, Std, expanded, reading
from petra_graph_vision.transforms import augmented

IMAGENET_TRAINING = 1_281_167


_OR_DOWNLOAD = {False: "; or set download = true", True: "; the download has failed"}
Download = Annotated[bool, "download missing files into root; without this, no file is downloaded"]


class _Published:
    """Images of one size whose files have a fixed content, in memory."""

    shape: ClassVar[tuple[int, ...]] = (3, 32, 32)
    classes: ClassVar[int]
    class_names: ClassVar[tuple[str, ...] | None] = None
    samples: ClassVar[int]
    """Of the training."""

    def __init__(
        self,
        *,
        root: Root,
        crop_padding: Padding = 4,
        flip: Flip = True,
        augment: Augment = (),
        mix: Mix = (),
        mean: Mean,
        std: Std,
    ) -> None:
        train, self.test = self._read(expanded(root))
        cropped = evolve(train, crop_padding=crop_padding, flip=flip)
        self.train = augmented(cropped, self.facts(mean=mean, std=std), augment, mix)

    def _read(self, folder: Path) -> tuple[ImageSplit, ImageSplit]:
        """Return the images of the training and of the test as they are; SpecError: the files are not there, or damaged."""
        raise NotImplementedError

    @classmethod
    def facts(cls, *, mean: tuple[float, ...], std: tuple[float, ...]) -> DataFacts:
        return DataFacts(shape=cls.shape, classes=cls.classes, mean=mean, std=std, class_names=cls.class_names)

    @classmethod
    def training_samples(cls) -> int:
        return cls.samples


class _Downloaded(_Published):
    """Files that torchvision finds, or downloads."""

    def __init__(self, *, download: Download = False, **options: Any) -> None:
        self._download = download
        super().__init__(**options)


class _Cifar(_Downloaded):
    """CIFAR-10 or CIFAR-100: uint8 [3, 32, 32]; torchvision compares the files with their published digests."""

    archive: ClassVar[str]
    samples = 50_000

    def _read(self, folder: Path) -> tuple[ImageSplit, ImageSplit]:
        from torchvision import datasets

        archive: Any = getattr(datasets, self.archive)
        hint = f"root must hold {archive.base_folder}/ with the published python batches{_OR_DOWNLOAD[self._download]}"
        with reading(f"the files of {self.archive} in {folder}", hint):
            parts = [archive(str(folder), train, download=self._download) for train in (True, False)]
        arrays = [(np.ascontiguousarray(one.data), np.array(one.targets, np.int64)) for one in parts]
        return ImageSplit(*arrays[0]), ImageSplit(*arrays[1])


class Cifar10(_Cifar):
    """CIFAR-10: 60,000 images 3x32x32 of 10 classes, in its python (pickle) files."""

    archive, classes = "CIFAR10", 10
    class_names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

    def __init__(
        self, *, mean: Mean = (0.4914, 0.4822, 0.4465), std: Std = (0.2470, 0.2435, 0.2616), **options: Any
    ) -> None:
        super().__init__(mean=mean, std=std, **options)


class Cifar100(_Cifar):
    """CIFAR-100: 60,000 images 3x32x32 of 100 classes, in its python (pickle) files; targets are the fine classes."""

    archive, classes = "CIFAR100", 100

    def __init__(
        self, *, mean: Mean = (0.5071, 0.4865, 0.4409), std: Std = (0.2673, 0.2564, 0.2762), **options: Any
    ) -> None:
        super().__init__(mean=mean, std=std, **options)


class FashionMnist(_Downloaded):
    """Fashion-MNIST: 70,000 grey images 1x28x28 of 10 classes, in its idx (ubyte) files.

    The files are in root/FashionMNIST/raw, as torchvision writes them, or, plain or as .gz, in root itself, as Debian's package
    `dataset-fashion-mnist` installs them.
    """

    shape, classes, samples = (1, 28, 28), 10, 60_000
    class_names = tuple("t-shirt/top trouser pullover dress coat sandal shirt sneaker bag ankle-boot".split())  # noqa: SIM905  one line of names

    def __init__(self, *, mean: GreyMean = (0.2860,), std: GreyStd = (0.3530,), **options: Any) -> None:
        super().__init__(mean=mean, std=std, **options)

    def _read(self, folder: Path) -> tuple[ImageSplit, ImageSplit]:
        from torchvision.datasets import FashionMNIST

        hint = (
            f"root must hold FashionMNIST/raw/ with the four files, plain or as .gz, or the files themselves{_OR_DOWNLOAD[self._download]}; or "
            'install Debian\'s dataset-fashion-mnist, with root = "/usr/share/datasets/fashion-mnist"'
        )
        with reading(f"the files of FashionMNIST in {folder}", hint):
            if self._download:
                FashionMNIST(str(folder), download=True)
            return _idx_images(folder, "train"), _idx_images(folder, "t10k")


def _idx_images(root: Path, part: str) -> ImageSplit:
    """Return the images [n, 28, 28, 1] of a part, whose files are plain or compressed."""

    def read(name: str, head: int) -> NDArray[np.uint8]:
        folders = [root / "FashionMNIST" / "raw", root]
        there = [path for folder in folders for end in ("", ".gz") if (path := folder / f"{name}{end}").is_file()]
        if not there:
            raise FileNotFoundError(f"there is no {name}")
        content = there[0].read_bytes()
        return np.frombuffer(gzip.decompress(content) if there[0].suffix == ".gz" else content, np.uint8, offset=head)

    # A file begins with its kind and the number of its items, and that of images with their height and width: four bytes each.
    pixels, targets = read(f"{part}-images-idx3-ubyte", 16), read(f"{part}-labels-idx1-ubyte", 8)
    return ImageSplit(pixels.reshape(len(targets), 28, 28, 1), targets.astype(np.int64))


class ImageNet32(_Published):
    """Downsampled ImageNet: 1,331,167 images 3x32x32 of 1000 classes, in its pickled batches.

    4.1 GB in memory. Its files count labels from 1; their "mean" image is not used.
    """

    classes, samples = 1000, IMAGENET_TRAINING

    def __init__(
        self, *, mean: Mean = (0.4811, 0.4575, 0.4078), std: Std = (0.2605, 0.2533, 0.2683), **options: Any
    ) -> None:
        super().__init__(mean=mean, std=std, **options)

    def _read(self, folder: Path) -> tuple[ImageSplit, ImageSplit]:
        hint = (
            "root must hold train_data_batch_1 to train_data_batch_10 and val_data; get Imagenet32_train.zip and Imagenet32_val.zip (an account "
            "is needed) from https://image-net.org/download-images and unpack both there"
        )
        batches = [folder / f"train_data_batch_{number}" for number in range(1, 11)]
        with reading(f"the files of imagenet32 in {folder}", hint):
            return _joined(batches), _joined([folder / "val_data"])


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


def _joined(files: Sequence[Path]) -> ImageSplit:
    """Return the images [n, 32, 32, 3] of pickled batches; each is a dictionary with "data" [n, 3 * 32 * 32], planes first, and "labels" from 1."""
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
    return ImageSplit(pixels[:read], np.concatenate(targets))
