"""Files as samples of a network: images, arrays, or whatever the data set itself reads.

.png .jpg ...   decoded to the network's channels; resized by the shorter side, and cropped at the centre
.npy            one sample [*shape], or several [n, *shape], in the data set's own type
.npz            the same for a network of several inputs: an array for each, by its name
others          where the data set's declaration has `read`
a folder        all files in it and below it, in the order of their names; hidden ones are left out
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from attrs import evolve, frozen
from numpy.typing import NDArray
from torch import Tensor

from petra_graph.errors import Problem, RunFailed, SpecError
from petra_graph.image_files import SUFFIXES, decode, resize_and_crop, visible_files
from petra_graph.planning.check.checked_spec import ConfiguredPlugin
from petra_graph.plugins.author_code import author_code, resolve_location
from petra_graph.plugins.data_set import DataFacts, DataSetDeclaration
from petra_graph.plugins.tensor_trees import Tree

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""PIL's modes by channels."""
_READABLE = "images, arrays (.npy; .npz for several inputs), or what the data set reads"


@frozen(kw_only=True)
class Samples:
    """The samples of one file."""

    name: str
    """The file, as the user gave it."""
    values: Tree
    """[n, *shape], in the data set's type; several inputs are in a dictionary."""
    place: Path = Path()
    """The file's path within the folder that the user gave, or its name: where in a folder its predictions are written."""
    note: str = ""
    """What was done to them."""


def read_samples(files: list[str], data: ConfiguredPlugin, facts: DataFacts) -> list[Samples]:
    """Read files: images, arrays, or what the data set's declaration reads; or folders of them.

    Raises:
        SpecError: files cannot be read as samples; all of them.
    """
    found, problems = [], list[Problem]()
    for given in files:
        with _collecting(problems, given):
            folder = Path(given).expanduser()
            below = sorted(Path(one).relative_to(folder) for one in visible_files(folder)) if folder.is_dir() else []
            for file, place in [(str(Path(given, one)), one) for one in below] or [(given, Path(folder.name))]:
                with _collecting(problems, file):
                    values, note = _read_file(file, data, facts)
                    found.append(Samples(name=file, values=values, place=place, note=note))
    if problems:
        raise SpecError(problems)
    return found


def samples_from_array(values: Any, facts: DataFacts) -> Samples:
    """Return the samples of an array, or of a dictionary of arrays by the names of the network's inputs.

    Raises:
        SpecError: the network cannot read them.
    """
    convert = _convert_inputs if facts.several_inputs else _convert_array
    return Samples(name="the array", values=convert(values, "the array", facts))


@contextmanager
def _collecting(problems: list[Problem], file: str) -> Iterator[None]:
    """Add why a file cannot be read to the problems."""
    try:
        yield
    except (SpecError, RunFailed) as error:
        problems += error.problems
    except (OSError, ValueError, SyntaxError, MemoryError) as error:
        named, reason = getattr(error, "filename", None), getattr(error, "strerror", None)
        problems.append(Problem(message=f"{named or file} cannot be read: {reason or error}"))


def _read_file(file: str, data: ConfiguredPlugin, facts: DataFacts) -> tuple[Tree, str]:
    """Return a file's samples, and what was done to them."""
    declaration, path = cast(DataSetDeclaration, data.plugin.declaration), Path(file).expanduser()
    if path.is_dir():
        raise SpecError(f"the folder {file} has no files", f"give a folder of {_READABLE}")
    if not path.is_file():
        raise SpecError(f"there is no file {file}", f"give {_READABLE}")
    suffix = path.suffix.lower()
    if facts.several_inputs and suffix != ".npz":
        by_name = ", ".join(f"{name}=..." for name in facts.inputs)
        raise SpecError(
            f"{file} has one array, and the network reads the inputs {', '.join(facts.inputs)}",
            f"give a file of arrays by these names: numpy.savez(file, {by_name})",
        )
    if facts.several_inputs:
        with np.load(path, allow_pickle=False) as arrays:
            return _convert_inputs(dict(arrays), file, facts), ""
    if suffix == ".npy":
        with path.open("rb") as opened:
            return _convert_array(np.lib.format.read_array(opened, allow_pickle=False), file, facts), ""
    if declaration.read is not None:
        read = resolve_location(declaration.read, f"{data.plugin} cannot read files")
        with author_code(f"{data.plugin} cannot read {file}"):
            values = read(data.options, path)
        return _check_samples(values, file, facts), ""
    if suffix in SUFFIXES:
        return _read_image(path, file, facts)
    raise SpecError(
        f"{file} is neither an image nor an array (.npy), and {data.plugin} does not say how it is read",
        "its declaration may name a function with `read`",
    )


def _read_image(path: Path, file: str, facts: DataFacts) -> tuple[Tensor, str]:
    if len(facts.shape) != 3 or facts.dtype != "uint8" or facts.shape[0] not in _MODES:  # noqa: PLR2004
        raise SpecError(
            f"{file} is an image, and the network reads {facts.dtype} {list(facts.shape)}", "give arrays (.npy)"
        )
    channels, height, width = facts.shape
    picture, note = decode(path, _MODES[channels]), ""
    if picture.size != (width, height):
        note = f"resized and cropped from {picture.width} x {picture.height}"
        scale = max(height / picture.height, width / picture.width)
        resized = max(width, round(picture.width * scale)), max(height, round(picture.height * scale))
        picture = resize_and_crop(picture, resized, (width, height))
    pixels = torch.from_numpy(np.array(picture)).view(1, height, width, channels)
    return pixels.permute(0, 3, 1, 2), note


def _convert_inputs(arrays: Any, file: str, facts: DataFacts) -> dict[str, Tensor]:
    """Return samples of several inputs, each checked as one of its own."""
    if not isinstance(arrays, Mapping) or arrays.keys() != facts.inputs.keys():
        came = ", ".join(map(str, arrays)) if isinstance(arrays, Mapping) else "one array"
        raise SpecError(
            f"{file} has {came}, and the network reads the inputs {', '.join(facts.inputs)}",
            "give an array for each, by its name",
        )
    found = {
        name: _convert_array(arrays[name], f"{name} of {file}", evolve(facts, shape=shape, dtype=dtype))
        for name, (shape, dtype) in facts.inputs.items()
    }
    if len({len(one) for one in found.values()}) > 1:
        counts = ", ".join(f"{len(one)} of {name}" for name, one in found.items())
        raise SpecError(f"{file} has {counts}", "give as many samples of each input")
    return found


def _convert_array(values: Any, file: str, facts: DataFacts) -> Tensor:
    array: NDArray[Any] = np.asarray(values)
    wanted = np.dtype(facts.dtype)
    if not np.can_cast(array.dtype, wanted, "same_kind"):
        # Integers of a wider type, as most programs write them, may well be in the range.
        info = np.iinfo(wanted) if wanted.kind in "iu" and array.dtype.kind in "iu" else None
        if info is None or (array.size and (array.min() < info.min or array.max() > info.max)):
            raise SpecError(
                f"{file} has values of type {array.dtype}, and the network reads {facts.dtype}",
                "images are uint8 from 0 to 255: the network itself normalises them" if facts.dtype == "uint8" else "",
            )
    return _check_samples(torch.from_numpy(np.ascontiguousarray(array, dtype=wanted)), file, facts)


def _check_samples(values: object, file: str, facts: DataFacts) -> Tensor:
    """Return samples [n, *shape] of the type that the network reads."""
    if isinstance(values, Tensor) and str(values.dtype) == f"torch.{facts.dtype}":
        if tuple(values.shape) == facts.shape:
            return values.unsqueeze(0)
        if tuple(values.shape[1:]) == facts.shape and len(values):
            return values
    came = type(values).__name__
    if isinstance(values, Tensor):
        came = f"{values.dtype} {list(values.shape)}".removeprefix("torch.")
    raise SpecError(
        f"{file} has {came}, and the network reads {facts.dtype} {list(facts.shape)}",
        "give one sample, or several with their number before the shape",
    )
