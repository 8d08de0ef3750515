"""torch Datasets as a data set: samples (x, y) by index, or of the training in the order of an [IterableDataset](torch_streams.py).

x is a tensor, or a dictionary of named ones.

Decision: Python's, numpy's and torch's generators are seeded with (seed, epoch, index) around each `__getitem__`, a test or
validation sample's with its index alone, and restored afterwards. So whatever a transform draws is the same on any number of loader processes, on any number
of processes, and after a resume. A generator that the Dataset holds stands where the samples before have left it: it is refused.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
import torch
from attrs import evolve, frozen
from numpy.typing import NDArray
from torch import Tensor

from petra_graph.blocks.randomness import random_key
from petra_graph.catalog.datasets.splits import OpenedDataSet
from petra_graph.errors import Problem, RunFailed, SpecError
from petra_graph.kinds.generators import as_they_were, seed_all, seeded
from petra_graph.kinds.tensor_trees import named_leaves
from petra_graph.plugins import DataFacts, DataSet, named_code, padded_length
from petra_graph_modules.datasets.torch_streams import TorchStream, is_iterable
from petra_graph_modules.declared_datasets import TorchOptions

_WIDENED = {
    torch.bool: torch.int64,
    torch.int8: torch.int64,
    torch.int16: torch.int64,
    torch.int32: torch.int64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}
"""Types that data sets do not have, with those that hold the same values."""
_TYPES = (torch.uint8, torch.int64, torch.float32, torch.float64)
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_DEPTH, _ITEMS = 5, 64
"""How deep a Dataset is searched for generators (Subset, transform, list), and how long the lists in it are at most."""
_IGNORED = -100
"""The target that losses pass over."""
_CHANNELS = ("L", "LA", "RGB", "RGBA")
"""PIL's modes that an image keeps; one of black and white alone becomes grey, any other red, green and blue."""


def torch_data_set(options: TorchOptions) -> DataSet:
    """Return the opened data set.

    Raises:
        SpecError: the code was not found, it is not a map-style Dataset, or its first sample is not a pair that can be trained on.
    """
    data: DataSet = options.opened
    return data


def open_datasets(options: TorchOptions) -> DataSet:
    """Open the Datasets and read the first sample of each; errors as of `torch_data_set`."""
    given = {name: getattr(options, name) for name in ("train", "test", "validation", "plain")}
    datasets = {name: _make_dataset(name, code) for name, code in given.items() if code is not None}
    first = {name: _read_first(name, dataset) for name, dataset in datasets.items()}
    facts = _with_lengths(_facts(*first["train"], options.classes), options.lengths)
    parts = {"test": "test", "validation": "validation", "plain": "validation"}
    splits = {
        name: TorchSplit(dataset=datasets[name], facts=facts, part=part)
        for name, part in parts.items()
        if name in datasets
    }
    train: Any = TorchSplit(dataset=datasets["train"], facts=facts, part="training", unaugmented=splits.get("plain"))
    if is_iterable(datasets["train"]):
        train = TorchStream(dataset=datasets["train"], read=train.read)
    return OpenedDataSet(train=train, test=splits["test"], validation=splits.get("validation"), facts=facts)


@frozen(kw_only=True, eq=False)
class TorchSplit:
    """One Dataset."""

    dataset: Any
    facts: DataFacts
    part: str
    """ "training", "validation" or "test"."""
    unaugmented: TorchSplit | None = None
    """The same samples, of the Dataset that `plain` names."""

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def plain(self) -> TorchSplit:
        """The training samples without augmentation.

        Raises:
            SpecError: the specification names no Dataset of them.
        """
        if self.unaugmented is None:
            message = "a share of the training Dataset is to be the validation samples, which must not be augmented"
            hint = (
                "name the training Dataset without augmentation in data.options.plain (the same as `train` if that augments nothing), or "
                'a Dataset of its own in data.options.validation, with data.validation = "validation"'
            )
            raise SpecError(Problem(message=message, hint=hint, path=("data", "validation")))
        return self.unaugmented

    def fetch(self, indices: NDArray[np.intp], *, seed: int, epoch: int) -> tuple[Tensor, Any]:
        """Load samples.

        Raises:
            RunFailed: one is not like the first sample of the training data.
        """
        at = (seed, epoch) if self.part == "training" else (self.part,)
        with as_they_were():
            rows = [self._sample(int(index), random_key(*at, index)) for index in indices]
        if self.facts.lengths:
            rows = self._padded(rows)
        samples, targets = zip(*rows, strict=True)
        return _stack(samples), _stack(targets)

    def lengths(self, indices: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the length of each sample.

        Raises:
            RunFailed: as of `fetch`.
        """
        return self._lengths[indices]

    @cached_property
    def _lengths(self) -> NDArray[np.intp]:
        """Of all samples; a Dataset that does not know them is read once."""
        known = getattr(self.dataset, "lengths", None)
        if known is None:
            with as_they_were():
                known = [len(self._sample(index, random_key(self.part, index))[0]) for index in range(len(self))]
        return np.asarray(known, np.intp)

    def _padded(self, rows: Sequence[tuple[Tensor, Any]]) -> list[tuple[Tensor, Any]]:
        """Return samples of the length that holds the longest of them."""
        facts = self.facts.padded(padded_length(self.facts.lengths, max(len(x) for x, _ in rows)))

        def pad(one: Tensor, value: int) -> Tensor:
            whole = one.new_full((facts.shape[0], *one.shape[1:]), value)
            whole[: len(one)] = one
            return whole

        return [(pad(x, 0), pad(y, _IGNORED) if facts.target_of_positions else y) for x, y in rows]

    def _sample(self, index: int, key: int) -> tuple[Any, Any]:
        seed_all(key)
        return self.read(index, self.dataset[index])

    def read(self, index: int, sample: Any) -> tuple[Tensor, Any]:
        """Return the tensors of a sample that the Dataset has given; errors as of `fetch`."""
        try:
            x, y = _read_sample(sample)
        except ValueError as error:
            raise RunFailed(f"sample {index} of the {self.part} data: {error}", _PAIR) from None
        facts = self.facts
        if facts.lengths:
            if not x.dim() or not 0 < len(x) <= facts.lengths[-1]:
                message = f"sample {index} of the {self.part} data is {_form(x)}, and data.options.lengths end at {facts.lengths[-1]}"
                raise RunFailed(message, "cut such samples off, or give a longer length")
            facts = facts.padded(len(x))
        inputs = {f'x["{name}"]' if name else "x": one for name, one in facts.inputs.items()}
        declared = inputs | {f"y{at}": one for at, one in facts.targets.items()}
        given = {f"x{at}": one for at, one in named_leaves(x)} | {f"y{at}": one for at, one in named_leaves(y)}
        hint = "let every sample have one shape and type: crop, resize or pad; or give data.options.lengths, if the first dimension differs"
        if given.keys() != declared.keys():
            message = f"sample {index} of the {self.part} data has {', '.join(given)}"
            raise RunFailed(f"{message}, and training sample 0 has {', '.join(declared)}", hint)
        for name, (shape, dtype) in declared.items():
            found = given[name]
            if (tuple(found.shape), found.dtype) != (shape, getattr(torch, dtype)):
                message = f"{name} of sample {index} of the {self.part} data is {_form(found)}"
                raise RunFailed(f"{message}, and that of training sample 0 is {dtype} {list(shape)}", hint)
        return x, y


_PAIR = "let a sample be (x, y), each a tensor, an array, a number or a PIL image, or several of them in a tuple or a dictionary"


def _stack(rows: Sequence[Any]) -> Any:
    first = rows[0]
    if isinstance(first, Tensor):
        return torch.stack(tuple(rows))
    if isinstance(first, Mapping):
        return {key: torch.stack([one[key] for one in rows]) for key in first}
    return tuple(map(torch.stack, zip(*rows, strict=True)))


def _make_dataset(option: str, location: str) -> Any:
    """Return the Dataset that an option names, made where it names a class or a function."""
    found = named_code(option, location)
    indexed = hasattr(found, "__getitem__") and not isinstance(found, type)
    with seeded(0):  # what it draws while it is made is the same in every process
        dataset = found() if callable(found) and not indexed else found
    fault = ""
    if option == "train" and is_iterable(dataset):
        return dataset
    if is_iterable(dataset) or not all(hasattr(dataset, name) for name in ("__len__", "__getitem__")):
        fault = f"is {type(dataset).__name__}, not a map-style Dataset"
    elif not len(dataset):
        fault = "has no samples"
    if fault:
        hint = (
            "give an object with __len__ and __getitem__, or what makes one; of a DataLoader, give its `dataset`; only `train` may be an "
            "IterableDataset: elsewhere, name a function that returns list(itertools.islice(stream, N))"
        )
        raise SpecError(Problem(message=f"{location} {fault}", hint=hint, path=(option,)))
    return dataset


def _read_first(option: str, dataset: Any) -> tuple[Any, Any]:
    """Return the first sample.

    Raises:
        SpecError: it is not (x, y), or reading it draws from a generator that the Dataset holds.
    """
    held = list(_find_generators(dataset, "", _DEPTH, set()))
    streams = is_iterable(dataset)
    earlier = _take_first(option, dataset) if streams else None  # a stream may seed its generators whenever it begins
    before = [_state_of(generator) for _, generator in held]
    sample = _take_first(option, dataset)
    moved = [path for (path, one), state in zip(held, before, strict=True) if _state_of(one) != state]
    if moved:
        message = f"the Dataset draws from a generator of its own, `{moved[0]}`: a sample would depend on those read before it"
        hint = "draw from random, np.random or torch without a generator: they are seeded for each sample, by seed, epoch and index"
        raise SpecError(Problem(message=message, hint=hint, path=(option,)))
    try:
        x, y = _read_sample(sample)
        same = not streams or _alike((x, y), _read_sample(earlier))
    except ValueError as error:
        raise SpecError(Problem(message=f"sample 0: {error}", hint=_PAIR, path=(option,))) from None
    if not same:
        message = "the stream has another first sample when it is iterated again, with the same state of all generators"
        hint = "let __iter__ begin anew, with a generator that it makes itself or the global ones: a resumed run reads the stream again"
        raise SpecError(Problem(message=message, hint=hint, path=(option,)))
    return x, y


def _take_first(option: str, dataset: Any) -> Any:
    """Return the first sample, read with the generators seeded with 0.

    Raises:
        SpecError: the Dataset has no sample.
    """
    try:
        with seeded(0):
            return next(iter(dataset)) if is_iterable(dataset) else dataset[0]
    except StopIteration:
        hint = "iterate it alone to see why; a stream that was read once must begin anew when it is iterated again"
        raise SpecError(Problem(message="the stream has no samples", hint=hint, path=(option,))) from None
    except Exception as error:
        raised = RuntimeError(f"sample 0 of `{option}`: {type(error).__name__}: {error}")
        raise raised.with_traceback(error.__traceback__) from error  # the line stays the author's


def _alike(one: Any, other: Any) -> bool:
    left, right = (
        {f"{name}{at}": leaf for name, part in zip("xy", sample, strict=True) for at, leaf in named_leaves(part)}
        for sample in (one, other)
    )
    return left.keys() == right.keys() and all(torch.equal(leaf, right[at]) for at, leaf in left.items())


def _facts(x: Any, y: Any, classes: int | Sequence[str] | None) -> DataFacts:
    if classes is not None and not (isinstance(y, Tensor) and y.dtype == torch.int64):
        came = ", ".join(f"{at} {_form(one)}".lstrip() for at, one in named_leaves(y))
        message = f"classes are counted by integers, and y of sample 0 is {came}"
        hint = "return an integer as y, or leave `classes` out where y is no class"
        raise SpecError(Problem(message=message, hint=hint, path=("classes",)))
    names = None if classes is None or isinstance(classes, int) else tuple(classes)
    return DataFacts(
        shape=_each(lambda one: tuple(one.shape), x),
        dtype=_each(_name, x),
        classes=classes if isinstance(classes, int) or names is None else len(names),
        class_names=names,
        target_shape=_each(lambda one: tuple(one.shape), y),
        target_dtype=_each(_name, y),
    )


def _with_lengths(facts: DataFacts, lengths: tuple[int, ...]) -> DataFacts:
    """Return the facts of samples of different lengths, of which `facts` are those of one.

    Raises:
        SpecError: such samples or targets have no length, or cannot be padded.
    """
    if not lengths:
        return facts
    fault = ""
    if facts.several_inputs:
        fault = "x of sample 0 are several inputs: lengths are those of samples with one"
    elif not facts.shape:
        fault = "x of sample 0 is a number, without a first dimension"
    elif facts.several_targets:
        fault = "y of sample 0 are several targets: lengths are those of samples with one"
    elif facts.target_of_positions and facts.target_dtype != "int64":
        fault = f"y of sample 0 is {facts.target_dtype} and as long as x, and only integers have a value that losses pass over (-100)"
    if fault:
        hint = "leave out lengths, or let __getitem__ return x [length, ...] with a y of one shape, or with integers y [length, ...]"
        raise SpecError(Problem(message=fault, hint=hint, path=("lengths",)))
    return evolve(facts.padded(lengths[-1]), lengths=lengths)


def _each(function: Callable[[Any], Any], part: Any) -> Any:
    """Return what a function makes of a part of a sample, or of each tensor in it."""
    if isinstance(part, Mapping):
        return {key: function(one) for key, one in part.items()}
    return tuple(map(function, part)) if isinstance(part, tuple | list) else function(part)


def _read_sample(sample: Any) -> tuple[Any, Any]:
    """Return a sample's tensors, of types that data sets have.

    Raises:
        ValueError: it is no pair of what can be such tensors.
    """
    if not isinstance(sample, tuple | list) or len(sample) != 2:  # noqa: PLR2004
        length = f" of {len(sample)}" if isinstance(sample, tuple | list | Mapping) else ""
        raise ValueError(f"it is a {type(sample).__name__}{length}, not a pair (x, y)")
    x, y = sample
    if isinstance(x, tuple | list):
        names = getattr(x, "_fields", [f"x{at}" for at in range(len(x))])
        x = dict(zip(names, x, strict=True))
    for name, part in (("x", x), ("y", y)):
        if isinstance(part, Mapping | tuple | list) and not part:
            raise ValueError(f"{name} is empty")
        if isinstance(part, Mapping) and not all(isinstance(key, str) and key for key in part):
            raise ValueError(f"{name} is a dictionary whose keys are not texts")
    if isinstance(x, Mapping):
        return {key: _tensor(f'x["{key}"]', one) for key, one in x.items()}, _each(_target, y)
    return _tensor("x", x), _each(_target, y)


def _target(value: Any) -> Tensor:
    found = _tensor("y", value)
    return found.long() if found.dtype == torch.uint8 else found


def _tensor(name: str, value: Any) -> Tensor:
    image = sys.modules.get("PIL.Image")
    if image is not None and isinstance(value, image.Image):
        return _image_tensor(name, value)
    if isinstance(value, np.ndarray):
        value = np.array(value)  # a copy, which may be written to
    if not isinstance(value, Tensor | np.ndarray | np.generic | int | float):
        raise ValueError(f"{name} is a {type(value).__name__}")  # noqa: TRY004  one class for all that a sample cannot be
    try:
        tensor = torch.as_tensor(value).detach()
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None
    tensor = tensor.to(_WIDENED.get(tensor.dtype, tensor.dtype))
    if tensor.dtype not in _TYPES:
        raise ValueError(f"{name} is {_form(tensor)}")
    return tensor


def _image_tensor(name: str, image: Any) -> Tensor:
    """Return a PIL image as float32 [channels, height, width] in [0, 1]."""
    from petra_graph.image_files import eight_bits

    try:
        image = eight_bits(image)
    except ValueError as error:
        raise ValueError(f"{name} is an image, and {error}") from None
    mode = image.mode if image.mode in _CHANNELS else "L" if image.mode == "1" else "RGB"
    pixels = torch.from_numpy(np.array(image.convert(mode)))
    return pixels.view(image.height, image.width, -1).permute(2, 0, 1).contiguous().float() / 255


def _name(tensor: Tensor) -> Any:
    return str(tensor.dtype).removeprefix("torch.")


def _form(tensor: Tensor) -> str:
    return f"{_name(tensor)} {list(tensor.shape)}"


def _find_generators(value: Any, path: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the generators within a Dataset, in attributes of attributes and in short lists, each with its path."""
    if isinstance(value, _GENERATORS):
        yield path, value
    elif depth and id(value) not in seen and not isinstance(value, type | ModuleType | Tensor | np.ndarray):
        seen.add(id(value))
        inside = value if isinstance(value, dict | list | tuple) else getattr(value, "__dict__", {})
        if len(inside) <= _ITEMS:
            for key, item in inside.items() if isinstance(inside, dict) else enumerate(inside):
                yield from _find_generators(item, f"{path}.{key}".removeprefix("."), depth - 1, seen)


def _state_of(generator: Any) -> bytes:
    return (
        generator.get_state().numpy().tobytes() if isinstance(generator, torch.Generator) else pickle.dumps(generator)
    )
