"""torch Datasets as a data set: samples by index, or, of an IterableDataset, in an order of their own.

Decision: Python's, numpy's and torch's generators are seeded with (seed, epoch, index) around each `__getitem__`, a test or
validation sample's with its index alone, and restored afterwards. So whatever a transform draws is the same on any number of loader
processes, on any number of processes, and after a resume. Those of a stream are seeded by the core, for each sample in its order. A Dataset
that holds a generator of its own is refused: a sample would depend on those read before it.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Annotated, Any

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, IterableDataset

from petra_graph.blocks import random_key
from petra_graph.errors import Problem, RunFailed, SpecError
from petra_graph.plugins import (
    AtLeast,
    Code,
    DataFacts,
    Length,
    fork_generators,
    named_code,
    seed_generators,
    seeded,
)
from petra_graph.plugins.tensor_trees import mapped, named_leaves

_PAIR = "let a sample be (x, y), each a tensor, an array, a number or a PIL image, or several of them in a tuple or a dictionary"
_WIDENED = {
    **dict.fromkeys((torch.bool, torch.int8, torch.int16, torch.int32), torch.int64),
    **dict.fromkeys((torch.float16, torch.bfloat16), torch.float32),
}
"""Types that data sets do not have, with those that hold the same values."""
_TYPES = (torch.uint8, torch.int64, torch.float32, torch.float64)
_CHANNELS = ("L", "LA", "RGB", "RGBA")
"""PIL's modes that an image keeps; one of black and white alone becomes grey, any other red, green and blue."""
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_DEPTH, _ITEMS = 5, 64
"""How deep a Dataset is searched for generators (Subset, transform, list), and how long the lists in it are at most."""


@frozen(kw_only=True, eq=False)
class TorchSplit:
    """A map-style Dataset."""

    dataset: Any
    facts: DataFacts
    part: str
    """ "training", "validation" or "test"."""
    unaugmented: TorchSplit | None = None
    """The same samples, of the Dataset that `plain` names."""
    _told: list[int] = field(factory=list, init=False)
    """The epoch that a training Dataset with `set_epoch` knows."""

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

    def fetch(self, indices: NDArray[np.intp], *, seed: int, epoch: int) -> tuple[Any, Any]:
        """Load samples.

        Raises:
            RunFailed: one is not like the first sample of the training data.
        """
        at = (seed, epoch) if self.part == "training" else (self.part,)
        if self.part == "training" and hasattr(self.dataset, "set_epoch") and self._told != [epoch]:
            self.dataset.set_epoch(epoch)
            self._told[:] = [epoch]
        rows = []
        with fork_generators():
            for index in map(int, indices):
                seed_generators(random_key(*at, index))
                rows.append(self.read(index, self.dataset[index]))
        stacked: tuple[Any, Any] = tree_map(lambda *each: torch.stack(each), *rows)
        return stacked

    def read(self, index: int, sample: Any) -> tuple[Any, Any]:
        """Return the tensors of a sample that the Dataset has given; errors as of `fetch`."""
        try:
            x, y = read_sample(sample)
        except ValueError as error:
            raise RunFailed(f"sample {index} of the {self.part} data: {error}", _PAIR) from None
        declared = {f'x["{name}"]' if name else "x": one for name, one in self.facts.inputs.items()}
        declared |= {f"y{place}": one for place, one in self.facts.targets.items()}
        given = _named(x, y)
        hint = "let every sample have one shape and type: crop, resize or pad"
        if given.keys() != declared.keys():
            message = f"sample {index} of the {self.part} data has {', '.join(given)}"
            raise RunFailed(f"{message}, and training sample 0 has {', '.join(declared)}", hint)
        for name, (shape, dtype) in declared.items():
            if (tuple(given[name].shape), _type(given[name])) != (shape, dtype):
                message = f"{name} of sample {index} of the {self.part} data is {_described(given[name])}"
                raise RunFailed(f"{message}, and that of training sample 0 is {dtype} {list(shape)}", hint)
        return x, y


@frozen(kw_only=True, eq=False)
class TorchStream:
    """An IterableDataset as a training split, whose samples are of unknown number."""

    dataset: Any
    read: Callable[[int, Any], tuple[Any, Any]]
    """Makes (x, y) of a sample and its number in the pass; raises RunFailed if it is not like the first one."""
    first: tuple[Any, Any]
    """The first sample, as it is before processes share the work."""
    _compared: list[bool] = field(factory=list, init=False)

    def iterate(self, *, seed: int, number: int) -> Iterator[tuple[Any, Any]]:
        """Yield the samples of a pass, which the Dataset is told if it has `set_epoch`.

        Raises:
            RunFailed: one is not like the first one, or the stream is another one in this process than in others.
        """
        if not self._compared and torch.distributed.is_available() and torch.distributed.is_initialized():
            self._compared.append(True)
            if not _are_equal(self.first, read_sample(_take_first("train", self.dataset))):
                message = "the training stream begins with another sample in this process than on its own: it follows the process's rank"
                hint = "let it yield all samples in every process: one reads the samples, and another one their targets"
                raise RunFailed(message, hint)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(number)
        for index, sample in enumerate(self.dataset):
            yield self.read(index, sample)


@frozen(kw_only=True, eq=False)
class TorchDataSet:
    """The splits and the facts of torch Datasets."""

    train: TorchSplit | TorchStream
    test: TorchSplit
    validation: TorchSplit | None
    facts: DataFacts


class Torch:
    """Your own torch Datasets with samples (x, y), named as code, or made by it.

    They are opened already when the specification is checked, once, and one sample is read.
    """

    def __init__(
        self,
        *,
        train: Annotated[
            Code,
            'training Dataset, map-style or iterable, or a function or class that makes it, as "my_file:make_train"',
        ],
        test: Annotated[Code, "test Dataset, map-style, in the same way"],
        validation: Annotated[
            Code | None, 'validation Dataset, in the same way, which data.validation = "validation" names'
        ] = None,
        plain: Annotated[
            Code | None,
            "training Dataset without augmentation, in the same way: a share of it is the validation samples if data.validation is one; that "
            "of `train` if it augments nothing",
        ] = None,
        classes: Annotated[
            int | tuple[str, ...] | None,
            "number of classes, or their names; default: y is no class, as in regression",
            AtLeast(1),
            Length(at_least=1),
        ] = None,
    ) -> None:
        opened = open_datasets(train, test, validation, plain, classes)
        _opened.clear()  # the next run opens them anew
        self.train, self.test, self.validation = opened.train, opened.test, opened.validation

    @staticmethod
    def facts(
        *,
        train: str,
        test: str,
        validation: str | None = None,
        plain: str | None = None,
        classes: int | tuple[str, ...] | None = None,
    ) -> DataFacts:
        """Return what the first sample says of all."""
        return open_datasets(train, test, validation, plain, classes).facts

    @staticmethod
    def of_images(*, test: str, **_: Any) -> bool:
        """Whether samples are PIL images, which become floats from 0 to 1."""
        first = _take_first("test", _make_dataset("test", test, named_code("test", test)))
        image = sys.modules.get("PIL.Image")
        return image is not None and isinstance(first[0], image.Image)


_opened: list[tuple[Mapping[str, Any], Any, TorchDataSet]] = []
"""What the check of a specification has opened, by its code and classes: a Dataset may read files, and a stream begins once."""


def open_datasets(
    train: str, test: str, validation: str | None, plain: str | None, classes: int | tuple[str, ...] | None
) -> TorchDataSet:
    """Make the Datasets that options name, or return those that are open; the first sample of each says what the others are like.

    Raises:
        SpecError: the code was not found, it is no Dataset, or its first sample is not a pair that can be trained on.
    """
    named = {"train": train, "test": test, "validation": validation, "plain": plain}
    codes = {name: named_code(name, code) for name, code in named.items() if code is not None}
    for known, of_classes, data in _opened:
        same = known.keys() == codes.keys() and all(known[name] is codes[name] for name in codes)
        if same and of_classes == classes:
            return data
    datasets = {name: _make_dataset(name, str(named[name]), code) for name, code in codes.items()}
    first = {name: _first_sample(name, dataset) for name, dataset in datasets.items()}
    facts = _facts(*first["train"], classes)
    splits = {
        name: TorchSplit(dataset=datasets[name], facts=facts, part=part)
        for name, part in {"test": "test", "validation": "validation", "plain": "validation"}.items()
        if name in datasets
    }
    whole = TorchSplit(dataset=datasets["train"], facts=facts, part="training", unaugmented=splits.get("plain"))
    opened = TorchDataSet(
        train=TorchStream(dataset=whole.dataset, read=whole.read, first=first["train"])
        if _is_iterable(whole.dataset)
        else whole,
        test=splits["test"],
        validation=splits.get("validation"),
        facts=facts,
    )
    _opened[:] = [(codes, classes, opened)]
    return opened


def read_sample(sample: Any) -> tuple[Any, Any]:
    """Return (x, y): x a tensor or a dictionary of named ones, y a tensor or several in a dictionary or a tuple.

    Raises:
        ValueError: the sample is no pair of what can be such tensors.
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
    inputs = {key: _tensor(f'x["{key}"]', one) for key, one in x.items()} if isinstance(x, Mapping) else _tensor("x", x)
    if isinstance(y, Mapping):
        return inputs, {key: _target(one) for key, one in y.items()}
    return inputs, tuple(map(_target, y)) if isinstance(y, tuple | list) else _target(y)


def _make_dataset(option: str, location: str, code: Any) -> Any:
    """Return the Dataset that an option names, made where it names a class or a function."""
    is_made = not callable(code) or (hasattr(code, "__getitem__") and not isinstance(code, type))
    with seeded(0):  # what it draws while it is made is the same in every process
        dataset = code if is_made else code()
    if option == "train" and _is_iterable(dataset):
        return dataset
    if _is_iterable(dataset) or not all(hasattr(dataset, name) for name in ("__len__", "__getitem__")):
        fault = f"is {type(dataset).__name__}, not a map-style Dataset"
    elif not len(dataset):
        fault = "has no samples"
    else:
        return dataset
    hint = (
        "give an object with __len__ and __getitem__, or what makes one; of a DataLoader, give its `dataset`; only `train` may be an "
        "IterableDataset: elsewhere, name a function that returns list(itertools.islice(stream, N))"
    )
    raise SpecError(Problem(message=f"{location} {fault}", hint=hint, path=(option,)))


def _is_iterable(dataset: object) -> bool:
    """Whether a Dataset can only be read in its own order; a DataLoader makes batches, which are no samples."""
    if not hasattr(dataset, "__iter__") or isinstance(dataset, DataLoader):
        return False
    return isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"))


def _first_sample(option: str, dataset: Any) -> tuple[Any, Any]:
    def refused(message: str, hint: str) -> SpecError:
        return SpecError(Problem(message=message, hint=hint, path=(option,)))

    held = list(_find_generators(dataset, "", _DEPTH, set()))
    streams = _is_iterable(dataset)
    earlier = _take_first(option, dataset) if streams else None  # a stream may seed its generators whenever it begins
    before = [_state(generator) for _, generator in held]
    sample = _take_first(option, dataset)
    moved = [path for (path, one), state in zip(held, before, strict=True) if _state(one) != state]
    if moved:
        raise refused(
            f"the Dataset draws from a generator of its own, `{moved[0]}`: a sample would depend on those read before it",
            "draw from random, np.random or torch without a generator: they are seeded for each sample, by seed, epoch and index",
        )
    try:
        found = read_sample(sample)
        again = read_sample(earlier) if streams else found
    except ValueError as error:
        raise refused(f"sample 0: {error}", _PAIR) from None
    if not _are_equal(found, again):
        raise refused(
            "the stream has another first sample when it is iterated again, with the same state of all generators",
            "let __iter__ begin anew, with a generator that it makes itself or the global ones: a resumed run reads the stream again",
        )
    return found


def _take_first(option: str, dataset: Any) -> Any:
    """Return what the Dataset gives first, with the global generators seeded with 0."""
    try:
        with seeded(0):
            return next(iter(dataset)) if _is_iterable(dataset) else dataset[0]
    except StopIteration:
        hint = "iterate it alone to see why; a stream that was read once must begin anew when it is iterated again"
        raise SpecError(Problem(message="the stream has no samples", hint=hint, path=(option,))) from None
    except Exception as error:
        raised = RuntimeError(f"sample 0 of `{option}`: {type(error).__name__}: {error}")
        raise raised.with_traceback(error.__traceback__) from error  # the line stays the author's


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


def _state(generator: Any) -> bytes:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    return pickle.dumps(generator)


def _has_channels_last(x: Tensor) -> bool:
    """Whether a sample is surely an image of height, width, channels, which blocks would take for channels, height, width."""
    if x.dim() != 3 or x.shape[2] not in {1, 3, 4} or min(x.shape[:2]) <= 4:  # noqa: PLR2004  more channels than images have
        return False
    return x.dtype == torch.uint8 or (x.is_floating_point() and float(x.min()) >= 0 and float(x.max()) <= 1)


def _facts(x: Any, y: Any, classes: int | Sequence[str] | None) -> DataFacts:
    if classes is not None and not (isinstance(y, Tensor) and y.dtype == torch.int64):
        came = ", ".join(f"{place} {_described(one)}".lstrip() for place, one in named_leaves(y))
        message = f"classes are counted by integers, and y of sample 0 is {came}"
        hint = "return an integer as y, or leave `classes` out where y is no class"
        raise SpecError(Problem(message=message, hint=hint, path=("classes",)))
    for place, one in named_leaves(x):
        if _has_channels_last(one):
            message = f"x{place} of sample 0 is {_described(one)}, an image whose channels come last"
            hint = "return channels, height, width: torch.as_tensor(image).permute(2, 0, 1)"
            raise SpecError(Problem(message=message, hint=hint, path=("train",)))
    shapes, types = ([mapped(of, part) for part in (x, y)] for of in (lambda one: tuple(one.shape), _type))
    return DataFacts(
        shape=shapes[0],
        dtype=types[0],
        classes=len(classes) if isinstance(classes, Sequence) else classes,
        class_names=tuple(classes) if isinstance(classes, Sequence) else None,
        target_shape=shapes[1],
        target_dtype=types[1],
    )


def _named(x: Any, y: Any) -> dict[str, Tensor]:
    """Return the tensors of a sample by the names that messages give them, as in `x["image"]` and `y[0]`."""
    return {f"{name}{place}": one for name, part in (("x", x), ("y", y)) for place, one in named_leaves(part)}


def _are_equal(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    left, right = _named(*one), _named(*other)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _described(tensor: Tensor) -> str:
    """Return the type and the shape of a tensor, as in `float32 [3, 4]`."""
    return f"{_type(tensor)} {list(tensor.shape)}"


def _target(value: Any) -> Tensor:
    target = _tensor("y", value)
    return target.long() if target.dtype == torch.uint8 else target


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
        raise ValueError(f"{name} is {_described(tensor)}")
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
