"""Any images in folders, brought to one size, decoded at every fetch or once into memory.

Decision: both ways have the same augmentation, so `cache` changes time and memory, but no pixel.
"""

from __future__ import annotations

import numpy as np
from attrs import evolve

from petra_graph.catalog.datasets.declared import IMAGE_FOLDER, ImageFolderOptions
from petra_graph.catalog.datasets.files import expanded
from petra_graph.catalog.datasets.folders import ClassFolders, ImageFiles, scan_splits
from petra_graph.catalog.datasets.splits import PixelStore, image_data_set
from petra_graph.errors import RunFailed, SpecError
from petra_graph.registry.contracts import DataSet


def image_folder(options: ImageFolderOptions) -> DataSet:
    """Open folders of images: uint8 [3, size, size]; classes are the folders' names in alphabetical order.

    Raises:
        SpecError: folders are missing or do not fit together, or `cache` is set and a file cannot be decoded.
    """
    hint = (
        f"root must hold {options.train}/ and {options.test}/ with a folder of images a class each; "
        'set options "train", "test" and "classes" for another layout'
    )
    train, test = scan_splits(expanded(options.root), options.train, options.test, classes=options.classes, hint=hint)
    return image_data_set(
        (_store(train, options), train.targets),
        (_store(test, options), test.targets),
        facts=evolve(IMAGE_FOLDER.facts(options), classes=len(train.classes)),
        crop_padding=options.crop_padding,
        flip=options.flip,
    )


def _store(folders: ClassFolders, options: ImageFolderOptions) -> PixelStore:
    # Threads would not help: for small images the interpreter, which threads share, takes longer than the decoder.
    files = ImageFiles(files=folders.files, size=options.size)
    if not options.cache:
        return files
    try:
        return files[np.arange(len(folders.files))]
    except RunFailed as error:  # No run has begun.
        raise SpecError(error.problems) from error
