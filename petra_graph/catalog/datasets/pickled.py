"""Image batches in Python pickles, as CIFAR and downsampled ImageNet are published.

Decision: the pickles are read by an unpickler that knows numpy arrays and the basic containers alone. A plain
`pickle.load` would run whatever a downloaded file asks for.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from petra_graph.catalog.datasets.places import problem


class _ArraysOnly(pickle.Unpickler):
    """Resolves what pickled numpy arrays name, under the module names of numpy 1 and 2, and nothing else."""

    allowed: ClassVar[frozenset[tuple[str, str]]] = frozenset(
        {
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("multiarray", "_reconstruct"),
            ("multiarray", "scalar"),
            ("numeric", "_frombuffer"),
            ("_codecs", "encode"),
            ("builtins", "bytearray"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        short = module.removeprefix("numpy._core.").removeprefix("numpy.core.")
        if (short, name) not in self.allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, and only arrays are read")
        if short in {"multiarray", "numeric"}:
            module = f"numpy._core.{short}"
        return super().find_class(module, name)


@frozen(kw_only=True)
class BatchFormat:
    """What one batch file holds: a dictionary with "data" [n, 3 * size * size], planes first, and labels."""

    size: int
    """Height and width in pixels."""
    classes: int
    label_keys: tuple[str, ...]
    """The first one that the dictionary has is read."""
    first_label: int = 0
    hint: str
    """What to do about a broken file."""


def read_batches(paths: Sequence[Path], form: BatchFormat) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read batch files, one after the other.

    Returns:
        Pixels [n, size, size, 3] and targets [n], counted from 0.

    Raises:
        SpecError: A file cannot be read or does not have the format.
    """
    row = 3 * form.size**2
    # A file is longer than its pixels, so the files' lengths bound the number of images. Pages never written to cost no
    # memory; joining the batches at the end instead would need twice the memory (ImageNet32: 3.9 GB).
    most = sum(path.stat().st_size for path in paths) // row
    pixels = np.empty((most, form.size, form.size, 3), np.uint8)
    targets = np.empty(most, np.int64)
    read = 0
    for path in paths:
        planes, labels = _read(path, form, row)
        upto = read + len(labels)
        pixels[read:upto] = planes.reshape(-1, 3, form.size, form.size).transpose(0, 2, 3, 1)
        targets[read:upto] = labels
        read = upto
    return pixels[:read], targets[:read]


def _read(path: Path, form: BatchFormat, row: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        with path.open("rb") as file:
            entry = _load(file)
    except Exception as error:  # damage leads anywhere: unknown codecs, lengths beyond memory, calls without arguments
        reason = str(error) or type(error).__name__
        raise problem(f"{path} cannot be read as a pickled batch: {reason}", form.hint) from error
    if not isinstance(entry, dict):
        raise problem(f"{path} must hold a dictionary (got {type(entry).__name__})", form.hint)
    key = next((key for key in form.label_keys if key in entry), None)
    if key is None or "data" not in entry:
        wanted = " or ".join(repr(key) for key in form.label_keys)
        raise problem(f"{path} must hold 'data' and {wanted} (got {sorted(map(str, entry))})", form.hint)
    data, raw = entry["data"], entry[key]
    if not isinstance(raw, list | np.ndarray) or not all(isinstance(label, int | np.integer) for label in raw):
        raise problem(f"{key!r} in {path} must be a list of whole numbers", form.hint)
    labels = np.array(raw, np.int64) - form.first_label
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (len(labels), row):
        came = f"{data.dtype}{list(data.shape)}" if isinstance(data, np.ndarray) else type(data).__name__
        raise problem(f"'data' in {path} must be uint8[{len(labels)}, {row}] (got {came})", form.hint)
    if len(labels) and (labels.min() < 0 or labels.max() >= form.classes):
        low, high = form.first_label, form.first_label + form.classes - 1
        span = f"{labels.min() + form.first_label} .. {labels.max() + form.first_label}"
        raise problem(f"labels in {path} must lie in {low} .. {high} (got {span})", form.hint)
    return data, labels


def _load(file: BinaryIO) -> Any:
    # latin1: the published files are Python 2's, whose byte strings hold arrays.
    return _ArraysOnly(file, encoding="latin1").load()
