"""torch Datasets as a data set: samples by index, or, of an IterableDataset, in an order of their own.

Decision: Python's, numpy's and torch's generators are seeded with (seed, epoch, index) around each `__getitem__`, a test or
validation sample's with its index alone, and restored afterwards. So whatever a transform draws is the same on any number of loader
processes, on any number of processes, and after a resume. A first sample that is another one when it is read again, from the same state of
all generators, is refused: samples would depend on those read before them.

With `run.micro_batches`, each epoch of a stream continues where the previous one stopped. A stream that ends is read again from its start:
that is its next pass. Generators are seeded with (seed, pass, sample of the pass) around each sample, so a sample depends on those before it
only through what the stream itself keeps. Going on is cheap; going back, as after a resume, reads the stream from its beginning.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Annotated, Any

import numpy as np
import torch
from attrs import Factory, define, evolve, field
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, IterableDataset

from petra_graph.blocks import random_key
from petra_graph.errors import RunFailed
from petra_graph.image_files import eight_bits
from petra_graph.plugins import AtLeast, Code, DataFacts, Length, fork_generators, named_code, seed_generators, seeded
from petra_graph.plugins.author_code import author_code
from petra_graph.plugins.tensor_trees import forms, leaves, mapped

_WIDENED = {
    **dict.fromkeys((torch.bool, torch.int8, torch.int16, torch.int32), torch.int64),
    **dict.fromkeys((torch.float16, torch.bfloat16), torch.float32),
}
"""Types that data sets do not have, with those that hold the same values."""
_OF_TARGETS = _WIDENED | {torch.uint8: torch.int64}
_PARTS = {"train": "training", "test": "test", "validation": "validation", "plain": "validation"}


def read_sample(sample: Any) -> tuple[Any, Any]:
    """Return (x, y): x a tensor or a dictionary of named ones, y a tensor or several in a dictionary or a tuple."""
    if not isinstance(sample, tuple | list) or len(sample) != 2:  # noqa: PLR2004
        raise ValueError(f"a sample is a {type(sample).__name__}, not a pair (x, y)")
    x, y = sample
    if isinstance(x, tuple | list):
        x = dict(zip(getattr(x, "_fields", [f"x{at}" for at in range(len(x))]), x, strict=True))
    if isinstance(y, Mapping):
        y = {key: _tensor(one, _OF_TARGETS) for key, one in y.items()}
    elif isinstance(y, tuple | list):
        y = tuple(_tensor(one, _OF_TARGETS) for one in y)
    else:
        y = _tensor(y, _OF_TARGETS)
    return {key: _tensor(one) for key, one in x.items()} if isinstance(x, Mapping) else _tensor(x), y


def _tensor(value: Any, widened: Mapping[torch.dtype, torch.dtype] = _WIDENED) -> Tensor:
    """Return a tensor of the types that data sets have; of a PIL image float32 [channels, height, width] in [0, 1]."""
    if isinstance(value, Image.Image):
        image = eight_bits(value)
        # Black and white alone become grey, what is no channel of light red, green and blue.
        mode = image.mode if image.mode in {"L", "LA", "RGB", "RGBA"} else "L" if image.mode == "1" else "RGB"
        pixels = torch.from_numpy(np.array(image.convert(mode)))
        return pixels.view(image.height, image.width, -1).permute(2, 0, 1).contiguous().float() / 255
    if isinstance(value, np.ndarray):
        value = np.array(value)  # a copy, which may be written to
    tensor = torch.as_tensor(value).detach()
    return tensor.to(widened.get(tensor.dtype, tensor.dtype))


Classes = Annotated[int | tuple[str, ...] | None, AtLeast(1), Length(at_least=1)]


def described(x: Any, y: Any) -> str:
    """Return names, types and shapes of a sample's tensors, as in `x float32 [3, 4], y int64 []`."""
    return f"{forms(x, 'x')}, {forms(y, 'y')}"


def are_equal(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    return described(*one) == described(*other) and all(map(torch.equal, leaves(one), leaves(other)))


@define(kw_only=True, eq=False, slots=False)
class _OfDataset:
    """The samples of a Dataset."""

    dataset: Any
    part: str
    """ "training", "validation" or "test"."""
    first: tuple[Any, Any]
    """The first training sample, as it is before processes share the work."""
    _form: str = field(init=False, default=Factory(lambda self: described(*self.first), takes_self=True))
    _compared: bool = field(default=False, init=False)
    _told: int | None = field(default=None, init=False)

    def begin(self, epoch: int) -> None:
        """Tell a training Dataset its epoch, if it wants to know."""
        if not self._compared and torch.distributed.is_available() and torch.distributed.is_initialized():
            self._compared = True
            # One process reads the samples, and another one their targets.
            if not are_equal(self.first, read_sample(_take_first(self.dataset))):
                raise RunFailed("the first training sample follows the process's rank", "give all in every process")
        if self._told != epoch:
            _tell(self.dataset, epoch)
            self._told = epoch

    def read(self, sample: Any) -> tuple[Any, Any]:
        """Return the tensors of a sample that the Dataset has given, which are like those of the first one."""
        read = read_sample(sample)
        if (found := described(*read)) != self._form:  # torch.stack would widen types
            raise ValueError(f"it is {found}, and training sample 0 is {self._form}")
        return read


def _stacked(rows: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    found: tuple[Any, Any] = tree_map(lambda *each: torch.stack(each), *rows)
    return found


def _tell(dataset: Any, epoch: int) -> None:
    """Tell a Dataset its epoch, and those that it has in it, as a Subset has."""
    if hasattr(dataset, "set_epoch"):
        dataset.set_epoch(epoch)
    for one in (getattr(dataset, "dataset", None), *getattr(dataset, "datasets", ())):
        if hasattr(one, "__getitem__"):
            _tell(one, epoch)


@define(kw_only=True, eq=False, slots=False)
class TorchSplit(_OfDataset):
    """A map-style Dataset."""

    plain: TorchSplit | None = None
    """The training samples without augmentation, of the Dataset that the option `plain` names."""

    def __len__(self) -> int:
        return len(self.dataset)

    def fetch(self, indices: NDArray[Any], *, seed: int, epoch: int) -> tuple[Any, Any]:
        at: tuple[Any, ...] = (self.part,)
        if self.part == "training":
            self.begin(epoch)
            at = seed, epoch
        rows = []
        with fork_generators():
            for index in map(int, indices):
                seed_generators(random_key(*at, index))
                rows.append(self.read(self.dataset[index]))
        return _stacked(rows)


@define(kw_only=True, eq=False, slots=False)
class TorchStream(_OfDataset):
    """An IterableDataset as a training split, whose samples are of unknown number: a run says how many an epoch has."""

    samples: int = 0
    in_order = True
    _source: Iterator[tuple[Any, Any]] | None = field(default=None, init=False)
    """All passes, as this process reads them; None: it has not begun, or they have raised."""
    _read_by: tuple[int, int] = field(default=(0, 0), init=False)
    """The seed and the process that read."""
    _next: int = field(default=0, init=False)
    """The number of the next sample, counted in all passes."""

    def in_epochs(self, samples: int) -> TorchStream:
        """Return the split of `samples` samples an epoch."""
        return evolve(self, samples=samples)

    def __getstate__(self) -> Mapping[str, Any]:
        """Return what a loader process needs, which reads the stream on its own."""
        return {**self.__dict__, "_source": None}

    def __len__(self) -> int:
        return self.samples

    def fetch(self, indices: NDArray[Any], *, seed: int, epoch: int) -> tuple[Any, Any]:
        numbers = [epoch * self.samples + int(one) for one in indices]
        reader, found = (seed, os.getpid()), dict[int, tuple[Any, Any]]()
        with fork_generators():
            source, self._source = self._source, None  # what raised is not read on
            # A fork shares open files.
            if source is None or min(numbers) < self._next or reader != self._read_by:
                source, self._read_by, self._next = self._passes(seed), reader, 0
            for number in range(self._next, max(numbers) + 1):
                sample = next(source)
                self._next = number + 1
                if number in numbers:
                    found[number] = sample
            self._source = source
        return _stacked([found[number] for number in numbers])

    def _passes(self, seed: int) -> Iterator[tuple[Any, Any]]:
        """Yield the samples of all passes, each with the generators seeded."""
        for number in count():
            samples: Iterator[Any] | None = None
            for index in count():
                with author_code(f"sample {index} of pass {number} of the training stream", error=RunFailed):
                    seed_generators(random_key(seed, number, index))
                    if samples is None:
                        self.begin(number)
                        samples = iter(self.dataset)
                    given = next(samples, _END)
                    read = None if given is _END else self.read(given)
                if read is None:
                    break
                yield read
            if not index:
                raise RunFailed(f"the training stream has no samples in pass {number}", "let __iter__ begin anew")


_END = object()


class Torch:
    """Your own torch Datasets with samples (x, y), named as code, or made by it."""

    def __init__(
        self,
        *,
        train: Annotated[Code, 'training Dataset, map-style or iterable, or what makes it, as "my_file:make_train"'],
        test: Annotated[Code, "test Dataset, map-style, in the same way"],
        validation: Annotated[Code | None, 'validation Dataset, which data.validation = "validation" names'] = None,
        plain: Annotated[Code | None, "training Dataset without augmentation, of which a validation share is"] = None,
        classes: Annotated[Classes, "number of classes, or their names; default: y is no class"] = None,
    ) -> None:
        _, splits = _open(classes, train=train, test=test, validation=validation, plain=plain)
        _latest.clear()  # the next run opens them anew
        self.train, self.test, self.validation = splits["train"], splits["test"], splits.get("validation")

    @staticmethod
    def facts(*, classes: Classes = None, **named: Any) -> DataFacts:
        """Return what the first sample says of all."""
        return _open(classes, **named)[0]

    @staticmethod
    def of_images(*, test: str, **_: Any) -> bool:
        """Whether samples are PIL images, which become floats from 0 to 1."""
        return isinstance(_take_first(_make_dataset("test", named_code("test", test)))[0], Image.Image)


_latest: list[tuple[Any, DataFacts, Mapping[str, Any]]] = []
"""What the check of a specification has opened, behind its classes and code: once, as a Dataset may read files, and a stream begins once."""


def _open(classes: Classes, **named: str | None) -> tuple[DataFacts, Mapping[str, Any]]:
    """Return the facts and the splits of the Datasets that options name, which are made once."""
    codes = {name: named_code(name, code) for name, code in named.items() if code is not None}
    for (of_classes, known), facts, splits in _latest:
        if of_classes == classes and known.keys() == codes.keys() and all(known[one] is codes[one] for one in codes):
            return facts, splits
    datasets = {name: _make_dataset(name, code) for name, code in codes.items()}
    firsts: dict[str, Any] = {}
    for name, dataset in datasets.items():
        # Several times, as a flip of its own comes twice alike every other time.
        firsts[name], *others = [read_sample(_take_first(dataset)) for _ in range(4)]
        if not all(are_equal(firsts[name], other) for other in others):
            raise ValueError(
                f"sample 0 of `{name}` is another one when it is read again, with the same state of all generators: draw from random, "
                "np.random or torch without a generator of its own, which are seeded for each sample; let the __iter__ of a stream begin anew"
            )
    first, y = firsts["train"], firsts["train"][1]
    if classes is not None and not (isinstance(y, Tensor) and y.dtype == torch.int64):
        raise ValueError(f"classes are counted by integers, and y of sample 0 is {forms(y)}; leave `classes` out")
    shape, target_shape = (mapped(lambda one: tuple(one.shape), part) for part in first)
    dtype, target_dtype = (mapped(lambda one: str(one.dtype).removeprefix("torch."), part) for part in first)
    facts = DataFacts(shape=shape, dtype=dtype, target_shape=target_shape, target_dtype=target_dtype)
    names = tuple(classes) if isinstance(classes, tuple | list) else None
    facts = evolve(facts, classes=len(names) if names else classes, class_names=names)
    kinds = {name: TorchStream if _is_iterable(one) else TorchSplit for name, one in datasets.items()}
    splits = {name: kinds[name](dataset=one, part=_PARTS[name], first=first) for name, one in datasets.items()}
    if "plain" in splits and isinstance(splits["train"], TorchSplit):
        splits["train"].plain = splits["plain"]
    _latest[:] = [((classes, codes), facts, splits)]
    return facts, splits


def _make_dataset(option: str, code: Any) -> Any:
    """Return the Dataset that an option names, made where it names a class or a function."""
    is_made = not callable(code) or (hasattr(code, "__getitem__") and not isinstance(code, type))
    with seeded(0):  # what it draws while it is made is the same in every process
        dataset = code if is_made else code()
    if not (option == "train" if _is_iterable(dataset) else _has_index(dataset) and len(dataset)):
        hint = "of a DataLoader, give its `dataset`; of a stream, list(itertools.islice(stream, N))"
        raise ValueError(f"`{option}` is {type(dataset).__name__}, not a map-style Dataset with samples: {hint}")
    return dataset


def _is_iterable(dataset: object) -> bool:
    """Whether a Dataset can only be read in its own order; a DataLoader makes batches, which are no samples."""
    in_order = isinstance(dataset, IterableDataset) or (hasattr(dataset, "__iter__") and not _has_index(dataset))
    return in_order and not isinstance(dataset, DataLoader)


def _has_index(dataset: object) -> bool:
    return hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")


def _take_first(dataset: Any) -> Any:
    """Return what the Dataset gives first, with the global generators seeded with 0."""
    with seeded(0):
        return next(iter(dataset), None) if _is_iterable(dataset) else dataset[0]
