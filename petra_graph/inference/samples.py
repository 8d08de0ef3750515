"""What a network is asked about: files or arrays as samples, of the shape and type that the facts of its data set say, or refused.

.png .jpg ...   decoded to the network's channels; resized by the shorter side, and cropped at the centre
.npy            one sample [*shape], or several [n, *shape], in the data set's own type
.npz            the same for a network of several inputs: an array for each, by its name
others          where the data set has `read`
a folder        all files in it and below it, in the order of their names; hidden ones are left out
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from petra_graph.errors import Problem, RunFailed, SpecError
from petra_graph.image_files import SUFFIXES, decode, resize_and_crop, visible_files
from petra_graph.plugins.contract import Plugin
from petra_graph.plugins.data_set import DataFacts
from petra_graph.plugins.tensor_trees import Tree
from petra_graph.training.trained_network import as_stored

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""PIL's modes by channels."""
_IMAGE = 3
"""The dimensions of one image."""


@frozen(kw_only=True)
class Samples:
    """The samples of one file."""

    name: str
    """The file, as the user gave it, or below the folder that the user gave."""
    values: Tree
    """[n, *shape], in the data set's type; several inputs are in a dictionary."""
    note: str = ""
    """What was done to them."""


def read_samples(files: Sequence[str], data: Plugin, facts: DataFacts) -> list[Samples]:
    """Read files: images, arrays, or what the data set reads; or folders of them.

    Raises:
        SpecError: files cannot be read as samples; all of them.
    """
    found, problems = list[Samples](), list[Problem]()

    @contextmanager
    def collecting(file: str) -> Iterator[None]:
        """Add why a file cannot be read to the problems."""
        try:
            yield
        except (SpecError, RunFailed) as error:
            problems.extend(error.problems)
        except (OSError, ValueError, SyntaxError, MemoryError) as error:
            named, reason = getattr(error, "filename", None), getattr(error, "strerror", None)
            problems.append(Problem(message=f"{named or file} cannot be read: {reason or error}"))

    for given in files:
        with collecting(given):
            folder = Path(given).expanduser()
            below = sorted(Path(one).relative_to(folder) for one in visible_files(folder)) if folder.is_dir() else []
            for file in [str(Path(given, one)) for one in below] or [given]:
                with collecting(file):
                    values, note = _read_file(file, data, facts)
                    found.append(Samples(name=file, values=values, note=note))
    if problems:
        raise SpecError(problems)
    return found


def _read_file(file: str, data: Plugin, facts: DataFacts) -> tuple[Tree, str]:
    """Return a file's samples, and what was done to them."""
    path = Path(file).expanduser()
    suffix = path.suffix.lower()
    if not path.is_file():
        missing = f"the folder {file} has no files" if path.is_dir() else f"there is no file {file}"
        raise SpecError(missing, "give images, arrays (.npy; .npz for several inputs), or what the data set reads")
    if suffix in {".npy", ".npz"}:
        loaded = np.load(path, allow_pickle=False)
        return as_samples(loaded if suffix == ".npy" else dict(loaded), file, facts), ""
    if hasattr(data.code, "read"):
        return as_samples(data.ask("read", path), file, facts), ""
    if suffix not in SUFFIXES:
        reason = f"{file} is neither an image nor an array (.npy), and {data} does not say how it is read"
        raise SpecError(reason, "its class may have a static method `read`")
    # Floats are images where the data set itself makes them of images, from 0 to 1.
    images = not facts.several_inputs and len(facts.shape) == _IMAGE and facts.shape[0] in _MODES
    floats = images and facts.dtype == "float32" and hasattr(data.code, "of_images") and data.ask("of_images")
    if not images or not (facts.dtype == "uint8" or floats):
        reason = f"{file} is an image, and the network reads {facts.dtype} {list(facts.shape)}"
        raise SpecError(reason, "give arrays (.npy), made as the data set makes its samples")
    channels, height, width = facts.shape
    picture, note = decode(path, _MODES[channels]), ""
    if picture.size != (width, height):
        note = f"resized and cropped from {picture.width} x {picture.height}"
        scale = max(height / picture.height, width / picture.width)
        resized = max(width, round(picture.width * scale)), max(height, round(picture.height * scale))
        picture = resize_and_crop(picture, resized, (width, height))
    pixels = torch.from_numpy(np.array(picture)).view(1, height, width, channels).permute(0, 3, 1, 2)
    return (pixels.contiguous().float() / 255 if floats else pixels), note


def as_samples(values: Any, name: str, facts: DataFacts) -> Tree:
    """Return an array or a tensor of one sample or several as samples [n, *shape] in the type that the facts say.

    Of several inputs, it is a dictionary of arrays by their names. `name` is for messages.

    Raises:
        SpecError: the network does not read them.
    """
    if not facts.several_inputs:
        return _as_input(values, name, facts.shape, facts.dtype)
    if not isinstance(values, Mapping) or values.keys() != facts.inputs.keys():
        came = ", ".join(map(str, values)) if isinstance(values, Mapping) else "one array"
        reason = f"{name} has {came}, and the network reads the inputs {', '.join(facts.inputs)}"
        raise SpecError(reason, "give an array for each, by its name")
    found = {key: _as_input(values[key], f"{key} of {name}", *one) for key, one in facts.inputs.items()}
    if len(set(map(len, found.values()))) > 1:
        counts = ", ".join(f"{len(one)} of {key}" for key, one in found.items())
        raise SpecError(f"{name} has {counts}", "give as many samples of each input")
    return found


def _as_input(values: Any, name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
    if not isinstance(values, Tensor):
        values = np.ascontiguousarray(values)
        if values.dtype.kind not in "biufc":
            raise SpecError(f"{name} has values of type {values.dtype}, and the network reads {dtype}")
        wide = values.dtype.kind == "u" and values.dtype.itemsize > 1  # torch computes little with these
        values = torch.from_numpy(values.astype(np.int64) if wide else values)
    tensor: Tensor = values.detach().cpu()
    came = f"{name} has {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    refusal = f"{came}, and the network reads {dtype} {list(shape)}"
    try:
        tensor = as_stored(tensor, dtype).to(getattr(torch, dtype))
    except ValueError as error:
        raise SpecError(refusal, str(error)) from None
    if tuple(tensor.shape) == shape:
        return tensor.unsqueeze(0)
    if tuple(tensor.shape[1:]) == shape and len(tensor):
        return tensor
    raise SpecError(refusal, "give one sample, or several with their number before the shape")
