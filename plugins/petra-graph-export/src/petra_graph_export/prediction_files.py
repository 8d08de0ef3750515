"""Predictions as files, one for each sample, in a folder.

    png    a class for each pixel: the class's number, in the colours of Pascal VOC; a value for each pixel: grey, or red, green and blue
    npy    any output: probabilities of the classes where the loss reads outputs as logits, else what the network returns

Decision: values are written to images as they are, 0 as black and 1 as white. Images that were brightened each by itself could not be
compared; so values outside are clipped, and the note says how many.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from attrs import frozen
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from petra_graph.errors import Problem, SpecError
from petra_graph.inference.saved_run import SavedRun
from petra_graph.inference.trained_network import Network
from petra_graph.kinds.tensor_trees import main
from petra_graph.record.run_directory import make_folder_of, write_whole
from petra_graph_export.predict_samples import ClassScore, Scored, best_classes, gives_classes, score_samples
from petra_graph_export.sample_files import Samples

Form = Literal["png", "npy"]
_COLOURS = 256
"""The classes that an image with a palette can tell apart."""
_MAP, _CHANNELS = 2, (1, 3)


@frozen(kw_only=True)
class Written:
    """The file of one sample's prediction."""

    file: str
    index: int
    written: Path
    best: tuple[ClassScore, ...] = ()
    """The classes that the most pixels of an image have, with their shares."""
    note: str = ""


def write_predictions(
    run: SavedRun,
    network: Network,
    samples: list[Samples],
    folder: Path,
    form: Form,
    *,
    top: int = 3,
    device: str = "cpu",
) -> list[Written]:
    """Write the prediction for each sample to `folder`, under the sample's own name; that of its n-th in a file ends in -n.

    Raises:
        SpecError: outputs are not maps that an image can hold, or two would be one file, or one is a sample's file; there is no such device.
        RunFailed: the network cannot be run, or a file cannot be written.
    """
    if form == "png":
        _expect_images(run)
    targets = _name_files(samples, folder, form)
    found = []
    for one in score_samples(run, network, samples, device):
        target = targets[one.file.name, one.index]
        make_folder_of(target)
        best, note = (_write_image if form == "png" else _write_array)(run, one, target, top)
        notes = ", ".join(filter(None, [one.file.note, note]))
        found.append(Written(file=one.file.name, index=one.index, written=target, best=best, note=notes))
    return found


def _expect_images(run: SavedRun) -> None:
    shape, classes = run.network.shapes[run.network.graph.head].outputs[0], run.facts.classes
    if gives_classes(run):
        fault = "" if len(shape) == _MAP + 1 else f"a class for each of {list(shape[1:])}" if shape[1:] else "a class"
        if not fault and (classes or 0) > _COLOURS:
            fault = f"{classes} classes for each pixel, where an image has {_COLOURS} colours"
    else:
        grey = len(shape) == _MAP
        fault = "" if grey or (len(shape) == _MAP + 1 and shape[0] in _CHANNELS) else f"outputs {list(shape)}"
    if fault:
        raise SpecError(
            f"the network's predictions are not images: a sample gets {fault}",
            "write arrays with --format npy, or a table with --format csv",
        )


def _name_files(samples: list[Samples], folder: Path, form: str) -> dict[tuple[str, int], Path]:
    """Return the file of each sample's prediction, by its own file and index."""
    targets: dict[tuple[str, int], Path] = {}
    owners: dict[Path, str] = {}
    problems = []
    inputs = {Path(one.name).expanduser().resolve() for one in samples}
    for one in samples:
        count = len(main(one.values))
        for index in range(count):
            number = f"-{index}" if count > 1 else ""
            target = folder / one.place.with_name(f"{one.place.stem}{number}.{form}")
            targets[one.name, index] = target
            owner = owners.setdefault(target, one.name)
            if owner != one.name:
                message = f"{owner} and {one.name} would both have their prediction in {target}"
                problems.append(Problem(message=message, hint="give the folder that both are in, or rename one"))
            if target.resolve() in inputs:
                message = f"the prediction for {one.name} would replace a file that is read, {target}"
                problems.append(Problem(message=message, hint="name another folder"))
    if problems:
        raise SpecError(problems)
    return targets


def _write_array(_run: SavedRun, one: Scored, target: Path, _top: int) -> tuple[tuple[ClassScore, ...], str]:
    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.save(file, one.scores.numpy())

    write_whole(target, write)
    return (), ""


def _write_image(run: SavedRun, one: Scored, target: Path, top: int) -> tuple[tuple[ClassScore, ...], str]:
    best: tuple[ClassScore, ...] = ()
    note = ""
    if gives_classes(run):
        classes = one.scores.argmax(dim=0)
        image = Image.fromarray(classes.byte().numpy())
        image.putpalette(_palette())
        shares = classes.flatten().bincount(minlength=len(one.scores)) / classes.numel()
        best = tuple(found for found in best_classes(shares, run.facts.class_names, top) if found.score)
    else:
        values = one.scores.float()
        outside = 1 - float(((values >= 0) & (values <= 1)).float().mean())
        note = f"{outside:.1%} of the values are outside 0 .. 1, and clipped" if outside else ""
        image = Image.fromarray(_to_pixels(values))
    write_whole(target, lambda path: image.save(path, "PNG"))
    return best, note


def _to_pixels(values: Tensor) -> NDArray[np.uint8]:
    """Return values [h, w], [1, h, w] or [3, h, w] in 0 .. 1 as the pixels of an image."""
    pixels: NDArray[Any] = (values.nan_to_num().clamp(0, 1) * 255).round().byte().numpy()
    if pixels.ndim == _MAP:
        return pixels
    return pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0).copy()


def _palette() -> list[int]:
    """Return red, green and blue of each class: those of Pascal VOC, whose bits are every third bit of the class's number."""
    return [
        sum((number >> (3 * bit + channel) & 1) << (7 - bit) for bit in range(3))
        for number in range(_COLOURS)
        for channel in range(3)
    ]
