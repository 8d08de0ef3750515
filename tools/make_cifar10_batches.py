"""Turn a folder of CIFAR-10 images into the python batches that torchvision and `cifar10` read.

Usage: python tools/make_cifar10_batches.py FOLDER ROOT

FOLDER holds train/ and test/ with a folder a class; ROOT gets cifar-10-batches-py/ with data_batch_1 to _5, test_batch
and batches.meta. The training images are spread over the batches in a fixed random order, as published ones are.
torchvision itself reads only files with the published checksums, so it will refuse these; `cifar10` reads them.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
from petra_graph_vision.class_folders import ClassFolders, ImageFiles, scan_splits

from petra_graph.errors import PetraGraphError

_BATCHES = 5


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    source, out = Path(arguments[0]), Path(arguments[1]) / "cifar-10-batches-py"
    try:
        train, test = scan_splits(source, "train", "test", classes=10, hint="FOLDER holds train/ and test/")
    except PetraGraphError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    out.mkdir(parents=True, exist_ok=True)
    order = np.random.default_rng(0).permutation(len(train.files))
    for number, part in enumerate(np.array_split(order, _BATCHES), start=1):
        label = f"training batch {number} of {_BATCHES}"
        write(out / f"data_batch_{number}", batch(train, part, label))
    write(out / "test_batch", batch(test, np.arange(len(test.files)), "testing batch 1 of 1"))
    meta = {"num_cases_per_batch": len(order) // _BATCHES, "label_names": list(train.classes), "num_vis": 3072}
    write(out / "batches.meta", meta)
    print(out)
    return 0


def batch(split: ClassFolders, part: np.ndarray, label: str) -> dict[str, Any]:
    pixels = ImageFiles(files=split.files, size=32)[part]
    return {
        "batch_label": label,
        "labels": split.targets[part].tolist(),
        "data": np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).reshape(len(part), -1),
        "filenames": [Path(split.files[index]).name for index in part],
    }


def write(path: Path, value: dict[str, Any]) -> None:
    with path.open("wb") as file:
        pickle.dump(value, file, protocol=4)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
