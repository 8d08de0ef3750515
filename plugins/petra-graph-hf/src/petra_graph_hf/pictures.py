"""`hf-images`: images of a data set with their labels, brought to one size, augmented as those of petra-graph-vision are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
from attrs import frozen
from numpy.typing import NDArray
from petra_graph_vision.class_folders import centre
from petra_graph_vision.transforms import augmented

from petra_graph.catalog.datasets.splits import CropAndFlip, ImageSplit
from petra_graph.errors import Problem, RunFailed, SpecError
from petra_graph.image_files import eight_bits
from petra_graph.plugins import DataFacts, DataSet, Split
from petra_graph_hf.declared import HF_IMAGES, PicturesOptions
from petra_graph_hf.sources import column_of, open_source


@frozen(kw_only=True, eq=False)
class Pictures:
    """A store of images, which the library decodes at each access."""

    rows: Any
    column: str
    size: int

    def __getitem__(self, indices: NDArray[np.intp]) -> NDArray[np.uint8]:
        pixels = np.empty((len(indices), self.size, self.size, 3), np.uint8)
        for position, index in enumerate(indices):
            try:
                image = eight_bits(self.rows[int(index)][self.column]).convert("RGB")
            except Exception as error:
                raise RunFailed(
                    f"image {index} of the data set cannot be decoded: {error}", "leave the row out"
                ) from error
            pixels[position] = centre(image, self.size)
        return pixels


@frozen(kw_only=True, eq=False)
class OpenedPictures:
    """The opened images."""

    train: Split
    test: Split
    validation: Split | None = None
    facts: DataFacts


def hf_images(options: PicturesOptions) -> DataSet:
    """Open the images: uint8 [3, size, size].

    Raises:
        SpecError: as `open_source`; or a column has no images, or no labels.
    """
    rows = dict(open_source(options).each())
    names, targets = _labels(rows, options)
    facts = attrs.evolve(HF_IMAGES.facts(options), classes=len(names) or options.classes, class_names=names or None)
    augment = CropAndFlip(padding=options.crop_padding, flip=options.flip)
    splits = {
        part: ImageSplit(
            pixels=_store(one, options), targets=targets[part], augment=augment if part == "train" else None
        )
        for part, one in rows.items()
    }
    return augmented(OpenedPictures(facts=facts, **splits), options)


def count_classes(options: PicturesOptions) -> PicturesOptions:
    """Return the options with the number of classes, if it is not given; errors as of `hf_images`."""
    names, targets = _labels(dict(open_source(options).each()), options)
    return attrs.evolve(options, classes=len(names) or 1 + max(int(one.max()) for one in targets.values()))


def _store(rows: Any, options: PicturesOptions) -> Pictures:
    feature = rows.features.get(options.image)
    if type(feature).__name__ != "Image":
        column_of(rows, "image", options.image)
        message = f"the column {options.image!r} has {type(feature).__name__}, not images"
        raise SpecError(Problem(message=message, hint="name the column of images", path=("image",)))
    return Pictures(rows=rows.select_columns([options.image]), column=options.image, size=options.size)


def _labels(
    splits: Mapping[str, Any], options: PicturesOptions
) -> tuple[tuple[str, ...], Mapping[str, NDArray[np.int64]]]:
    """Return the names of the classes, () where they have none, and each split's classes: texts are numbered in their order."""
    columns = {part: np.array(list(column_of(rows, "label", options.label))) for part, rows in splits.items()}
    names = tuple(getattr(splits["train"].features[options.label], "names", ()))
    if all(one.dtype.kind == "U" for one in columns.values()):
        names = tuple(sorted({name for one in columns.values() for name in one.tolist()}))
        columns = {part: np.searchsorted(names, one) for part, one in columns.items()}
    if not all(one.dtype.kind in "iu" and one.ndim == 1 and int(one.min()) >= 0 for one in columns.values()):
        message = f"the column {options.label!r} has other values than classes: whole numbers from 0, or texts"
        raise SpecError(Problem(message=message, hint="name the column of classes", path=("label",)))
    return names, {part: one.astype(np.int64) for part, one in columns.items()}
