"""The data sets of this package, as declarations without torch or numpy: what checks a specification imports neither."""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen

from petra_graph.plugins import DataFacts, DataSetDeclaration
from petra_graph_vision.data_set_options import (
    Cifar10Options,
    Cifar100Options,
    FashionMnistOptions,
    ImageFolderOptions,
    ImageNet32Options,
    ImageNetOptions,
)
from petra_graph_vision.files import class_folders, expanded


@frozen(kw_only=True)
class _Images:
    """The facts of uint8 images of one size, as a function of the options."""

    channels: int
    size: int | None = None
    classes: int | None = None
    names: str | None = None
    """The names of the classes, in a text with spaces between them; None: they are not known."""

    def __call__(self, options: Any) -> DataFacts:
        size = self.size or options.size
        classes = self.classes or options.classes
        return DataFacts(
            shape=(self.channels, size, size),
            classes=classes,
            mean=options.mean,
            std=options.std,
            class_names=None if self.names is None else tuple(self.names.split()),
        )


def _count_classes(options: ImageFolderOptions) -> ImageFolderOptions:
    """Return the options with the number of class folders, if it is not given.

    Raises:
        SpecError: the folder is missing, or has no class folder.
    """
    if options.classes is not None:
        return options
    folder = expanded(options.root) / (options.train if options.test_share is None else "")
    return evolve(options, classes=len(class_folders(folder, classes=None, hint=options.layout)))


IMAGENET_TRAINING, IMAGENET_CLASSES = 1_281_167, 1000

CIFAR10 = DataSetDeclaration(
    summary="CIFAR-10: 60,000 images 3x32x32 of 10 classes, in its python (pickle) files.",
    options=Cifar10Options,
    build="petra_graph_vision.pickled_sets:cifar10",
    training_samples=lambda _: 50_000,
    facts=_Images(channels=3, size=32, classes=10, names="airplane automobile bird cat deer dog frog horse ship truck"),
)
CIFAR100 = DataSetDeclaration(
    summary="CIFAR-100: 60,000 images 3x32x32 of 100 classes, in its python (pickle) files.",
    options=Cifar100Options,
    build="petra_graph_vision.pickled_sets:cifar100",
    training_samples=lambda _: 50_000,
    facts=_Images(channels=3, size=32, classes=100),
)
FASHION_MNIST = DataSetDeclaration(
    summary="Fashion-MNIST: 70,000 grey images 1x28x28 of 10 classes, in its idx (ubyte) files.",
    options=FashionMnistOptions,
    build="petra_graph_vision.fashion_mnist:fashion_mnist",
    training_samples=lambda _: 60_000,
    facts=_Images(
        channels=1,
        size=28,
        classes=10,
        names="t-shirt/top trouser pullover dress coat sandal shirt sneaker bag ankle-boot",
    ),
)
IMAGENET = DataSetDeclaration(
    summary="ImageNet (ILSVRC 2012) as folders of JPEG files, a folder a class.",
    options=ImageNetOptions,
    build="petra_graph_vision.folder_sets:imagenet",
    training_samples=lambda options: IMAGENET_TRAINING if options.classes == IMAGENET_CLASSES else None,
    read="petra_graph_vision.folder_sets:read_image",
    facts=_Images(channels=3),
)
IMAGENET32 = DataSetDeclaration(
    summary="Downsampled ImageNet: 1,331,167 images 3x32x32 of 1000 classes, in its pickled batches.",
    options=ImageNet32Options,
    build="petra_graph_vision.pickled_sets:imagenet32",
    training_samples=lambda _: IMAGENET_TRAINING,
    facts=_Images(channels=3, size=32, classes=1000),
)
IMAGE_FOLDER = DataSetDeclaration(
    summary="Any images in folders, a folder a class, brought to one size.",
    options=ImageFolderOptions,
    build="petra_graph_vision.folder_sets:image_folder",
    completed=_count_classes,
    read="petra_graph_vision.folder_sets:read_image",
    facts=_Images(channels=3),
)
