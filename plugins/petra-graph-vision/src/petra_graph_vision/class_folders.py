"""Folders of image files, one folder for each class.

Class folders are numbered in the order of their names, and files within them likewise, so that a sample's index does
not depend on the file system.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray
from PIL import Image

from petra_graph.errors import Problem, RunFailed, SpecError
from petra_graph.image_files import SUFFIXES, decode, read_size, resize_and_crop, visible_files
from petra_graph.units import listed, plural
from petra_graph_vision.files import ROOT, class_folders, file_error

_SPLITS = {"test", "train", "val", "valid", "validation"}
"""Names of folders that are no classes, if there are no others."""
_SHOWN = 10
"""Files that are named where many cannot be decoded."""


@frozen(kw_only=True, eq=False)
class ClassFolders:
    """The image files below one folder."""

    classes: tuple[str, ...]
    """Names of the class folders, in the order of their numbers."""
    files: tuple[str, ...]
    """[N]; plain strings, as a million Path objects would cost a gigabyte."""
    targets: NDArray[np.int64]
    """[N]"""

    def part(self, chosen: NDArray[np.bool_]) -> ClassFolders:
        """Return the images of a mask [N]."""
        files = tuple(file for file, taken in zip(self.files, chosen, strict=True) if taken)
        return evolve(self, files=files, targets=self.targets[chosen])


def scan_folder(folder: Path, *, classes: int | None, hint: str) -> ClassFolders:
    """Return the images below `folder`.

    Args:
        folder: the parent of the class folders.
        classes: the required number of class folders; None: at least two.
        hint: the layout, for messages.

    Raises:
        SpecError: the folder does not exist, has another number of classes, or has a class without images; one cannot be read.
    """
    names = class_folders(folder, classes=classes, hint=hint)
    if set(names) <= _SPLITS:
        splits = f"{folder} has the folders {listed(names)}, which are splits and not classes"
        raise file_error(splits, "leave out test_share, which parts the images of one folder")
    files: list[str] = []
    counts: list[int] = []
    for name in names:
        try:
            below = visible_files(folder / name)
            paths = sorted(file for file in below if os.path.splitext(file)[1].lower() in SUFFIXES)  # noqa: PTH122  quicker
        except OSError as error:
            raise file_error(f"{error.filename} cannot be read: {error.strerror}", hint) from error
        files += paths
        counts.append(len(paths))
    if empty := [name for name, count in zip(names, counts, strict=True) if not count]:
        raise file_error(f"{folder} has classes without images: {listed(empty)}", hint)
    return ClassFolders(classes=names, files=tuple(files), targets=np.repeat(np.arange(len(names)), counts))


def scan_splits(
    root: Path, train: str, test: str, *, classes: int | None, hint: str
) -> tuple[ClassFolders, ClassFolders]:
    """Return the images of both splits.

    Raises:
        SpecError: as for `scan_folder`, or the splits have different classes.
    """
    if not root.is_dir():
        raise file_error(f"{root} is not a folder", hint)
    splits = scan_folder(root / train, classes=classes, hint=hint), scan_folder(root / test, classes=classes, hint=hint)
    if odd := sorted(set(splits[0].classes) ^ set(splits[1].classes)):
        message = f"{root / train} and {root / test} must have the same classes (only one has {listed(odd)})"
        raise file_error(message, hint)
    return splits


def open_rgb(file: str) -> Image.Image:
    """Return one file decoded to RGB.

    Raises:
        RunFailed: it cannot be decoded.
    """
    try:
        return decode(file)
    except ValueError as error:
        raise RunFailed(_undecodable(file, error)) from error


def _undecodable(file: str, error: ValueError) -> Problem:
    return Problem(message=f"{file} cannot be decoded: {error}", hint="replace or remove the file", path=ROOT)


def try_headers(*splits: ClassFolders) -> None:
    """Read the header of every file.

    Raises:
        SpecError: some are no images that can be decoded.
    """
    problems = []
    for file in chain.from_iterable(split.files for split in splits):
        try:
            read_size(file)
        except ValueError as error:
            problems.append(_undecodable(file, error))
    if more := problems[_SHOWN:]:
        problems[_SHOWN:] = [Problem(message=f"{plural(len(more), 'more file')} cannot be decoded", path=ROOT)]
    if problems:
        raise SpecError(problems)


def centre(image: Image.Image, size: int, *, shorter: int | None = None) -> NDArray[np.uint8]:
    """Return an image resized by its shorter side to `shorter` (default: `size`), cropped at the centre: [size, size, 3]."""
    shorter = shorter or size
    width, height = (int(shorter * side / min(image.size)) for side in image.size)
    return np.asarray(resize_and_crop(image, (width, height), (size, size)))


def decode_all(
    files: Sequence[str], indices: NDArray[np.intp], size: int, view: Callable[[Image.Image, int], NDArray[np.uint8]]
) -> NDArray[np.uint8]:
    """Return the files of some indices as pixels [n, size, size, 3]; `view` makes the pixels of (image, index)."""
    pixels = np.empty((len(indices), size, size, 3), np.uint8)
    for position, index in enumerate(indices):
        pixels[position] = view(open_rgb(files[index]), int(index))
    return pixels


@frozen(kw_only=True, eq=False)
class ImageFiles:
    """A store that decodes files at each access."""

    files: Sequence[str]
    size: int
    shorter: int | None = None
    """The shorter side before the crop; None: `size`."""

    def __getitem__(self, indices: NDArray[np.intp]) -> NDArray[np.uint8]:
        return decode_all(
            self.files, indices, self.size, lambda image, _: centre(image, self.size, shorter=self.shorter)
        )
