"""Downsampled ImageNet in its published pickled batches.

Labels count from 1 there. The files also hold the "mean" image, which is not used: normalisation is by channel.

Source: Chrabaszcz, Loshchilov and Hutter 2017, arXiv:1707.08819; https://image-net.org/download-images.
"""

from __future__ import annotations

from petra_graph.catalog.datasets.declared import IMAGENET32, ImageNet32Options
from petra_graph.catalog.datasets.pickled import BatchFormat, read_batches
from petra_graph.catalog.datasets.places import expanded, find_folder
from petra_graph.catalog.datasets.splits import image_halves
from petra_graph.registry.contracts import DataSet

_TRAIN = tuple(f"train_data_batch_{number}" for number in range(1, 11))
_TEST = ("val_data",)
_HINT = (
    "root must hold train_data_batch_1 to train_data_batch_10 and val_data; get Imagenet32_train.zip and "
    "Imagenet32_val.zip (an account is needed) from https://image-net.org/download-images and unpack both there"
)
_FORMAT = BatchFormat(size=32, classes=1000, label_keys=("labels",), first_label=1, hint=_HINT)


def imagenet32(options: ImageNet32Options) -> DataSet:
    """Open downsampled ImageNet: uint8 [3, 32, 32], 1000 classes; it takes 4.1 GB of memory.

    Raises:
        SpecError: Files are missing or broken.
    """
    root = expanded(options.root)
    folder = find_folder("imagenet32", [root], [*_TRAIN, *_TEST], hint=_HINT)
    return image_halves(
        read_batches([folder / name for name in _TRAIN], _FORMAT),
        read_batches([folder / name for name in _TEST], _FORMAT),
        facts=IMAGENET32.facts(options),
        crop_padding=options.crop_padding,
        flip=options.flip,
    )
