"""CIFAR-10 and CIFAR-100 in their published python files, as torchvision lays them out.

Decision: torchvision fetches the files but does not read them. Its reader refuses any file whose checksum is not the
published one, and a folder made from the same images (`tools/make_cifar10_batches.py`) is as good to train on.

Source: Krizhevsky 2009, "Learning multiple layers of features from tiny images",
https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from petra_graph.catalog.datasets.declared import CIFAR10, CIFAR100, Cifar10Options, Cifar100Options
from petra_graph.catalog.datasets.pickled import BatchFormat, read_batches
from petra_graph.catalog.datasets.places import expanded, find_folder, problem
from petra_graph.catalog.datasets.splits import image_halves
from petra_graph.registry.contracts import DataFacts, DataSet


@frozen(kw_only=True)
class _Publication:
    """How one of the two sets is published."""

    name: str
    folder: str
    train: Sequence[str]
    test: Sequence[str]
    labels: tuple[str, ...]
    torchvision: str
    """Class in torchvision.datasets that knows address and checksum."""

    @property
    def hint(self) -> str:
        return (
            f"root must hold {self.folder}/ with {self.train[0]} and the others; set download = true, "
            f"or unpack the python version from https://www.cs.toronto.edu/~kriz/cifar.html there"
        )


_CIFAR10 = _Publication(
    name="cifar10",
    folder="cifar-10-batches-py",
    train=[f"data_batch_{number}" for number in range(1, 6)],
    test=["test_batch"],
    labels=("labels",),
    torchvision="CIFAR10",
)
_CIFAR100 = _Publication(
    name="cifar100",
    folder="cifar-100-python",
    train=["train"],
    test=["test"],
    labels=("fine_labels",),
    torchvision="CIFAR100",
)


def cifar10(options: Cifar10Options) -> DataSet:
    """Open CIFAR-10: uint8 [3, 32, 32], 10 classes.

    Raises:
        SpecError: Files are missing or broken, or cannot be fetched.
    """
    return _open(_CIFAR10, options, CIFAR10.facts(options), classes=10)


def cifar100(options: Cifar100Options) -> DataSet:
    """Open CIFAR-100 with its fine labels: uint8 [3, 32, 32], 100 classes.

    Raises:
        SpecError: Files are missing or broken, or cannot be fetched.
    """
    return _open(_CIFAR100, options, CIFAR100.facts(options), classes=100)


def _open(
    published: _Publication, options: Cifar10Options | Cifar100Options, facts: DataFacts, *, classes: int
) -> DataSet:
    root = expanded(options.root)
    needs = [*published.train, *published.test]
    candidates = [root / published.folder, root]
    complete = any(all((folder / file).is_file() for file in needs) for folder in candidates)
    if options.download and not complete:
        _download(published, root)
    folder = find_folder(published.name, candidates, needs, hint=published.hint)
    form = BatchFormat(size=32, classes=classes, label_keys=published.labels, hint=published.hint)
    return image_halves(
        read_batches([folder / file for file in published.train], form),
        read_batches([folder / file for file in published.test], form),
        facts=facts,
        crop_padding=options.crop_padding,
        flip=options.flip,
    )


def _download(published: _Publication, root: Path) -> None:
    from torchvision import datasets
    from torchvision.datasets.utils import download_and_extract_archive

    known: Any = getattr(datasets, published.torchvision)
    try:
        download_and_extract_archive(known.url, str(root), filename=known.filename, md5=known.tgz_md5)
    except (OSError, RuntimeError) as error:
        raise problem(f"{published.name} cannot be fetched from {known.url}: {error}", published.hint) from error
