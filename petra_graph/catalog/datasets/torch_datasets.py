"""torch Datasets as a data set: samples by index, or, of an IterableDataset, in an order of their own.

Decision: Python's, numpy's and torch's generators are seeded with (seed, epoch, index) around each `__getitem__`, a test or
validation sample's with its index alone, and restored afterwards. So whatever a transform draws is the same on any number of loader
processes, on any number of processes, and after a resume. A first sample that is another one when it is read again, from the same state of
all generators, is refused: samples would depend on those read before them.

A stream's epoch is `run.micro_batches`, which go on where the epoch before has ended:

    pass       | 0                        | 1                        | 2
    samples    | 0 1 2 ..          L0 - 1 | L0 L0+1 ..               |
    epochs     | 0             | 1             | 2             |        N = micro_batches * batch * replicas samples each

Decision: a pass begins when the one before has ended, within a micro-batch as well. Generators are seeded with (seed, pass, sample of the
pass) around each sample, so a sample depends on those before it only through what the stream itself keeps. Going on is cheap; going back,
and a process that begins in the middle as after a resume, reads the stream from its beginning.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Annotated, Any

import numpy as np
import torch
from attrs import define, evolve, field
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, IterableDataset

from petra_graph.blocks import random_key
from petra_graph.errors import Problem, RunFailed, SpecError
from petra_graph.image_files import eight_bits
from petra_graph.plugins import AtLeast, Code, DataFacts, Length, fork_generators, named_code, seed_generators, seeded
from petra_graph.plugins.author_code import author_code
from petra_graph.plugins.tensor_trees import form, forms, leaves, mapped, named_leaves
from petra_graph.units import plural

_PAIR = "let a sample be (x, y), each a tensor, an array, a number or a PIL image, or several of them in a tuple or a dictionary"
_WIDENED = {
    **dict.fromkeys((torch.bool, torch.int8, torch.int16, torch.int32), torch.int64),
    **dict.fromkeys((torch.float16, torch.bfloat16), torch.float32),
}
"""Types that data sets do not have, with those that hold the same values."""
_PARTS = {"train": "training", "test": "test", "validation": "validation", "plain": "validation"}
_READS = 4
"""How often the first sample is read, to see whether it stays the same: a flip of its own comes twice alike every other time."""


def read_sample(sample: Any) -> tuple[Any, Any]:
    """Return (x, y): x a tensor or a dictionary of named ones, y a tensor or several in a dictionary or a tuple; ValueError: it is no such pair."""
    if not isinstance(sample, tuple | list) or len(sample) != 2:  # noqa: PLR2004
        length = f" of {len(sample)}" if isinstance(sample, tuple | list | Mapping) else ""
        raise ValueError(f"it is a {type(sample).__name__}{length}, not a pair (x, y)")
    x, y = sample
    if isinstance(x, tuple | list):
        x = dict(zip(getattr(x, "_fields", [f"x{at}" for at in range(len(x))]), x, strict=True))
    inputs = {key: _tensor(f'x["{key}"]', one) for key, one in x.items()} if isinstance(x, Mapping) else _tensor("x", x)

    def target_of(value: Any) -> Tensor:
        target = _tensor("y", value)
        return target.long() if target.dtype == torch.uint8 else target

    if isinstance(y, Mapping):
        return inputs, {key: target_of(one) for key, one in y.items()}
    if isinstance(y, tuple | list):
        return inputs, tuple(map(target_of, y))
    target = target_of(y)
    # A label in a list of one, as arrays of labels [n, 1] give it; the one next token of one token is no such label.
    is_label = target.dtype == torch.int64 and target.shape == (1,) and form(inputs) != form(target)
    return inputs, target[0] if is_label else target


def _tensor(name: str, value: Any) -> Tensor:
    """Return a value of a sample as a tensor of the types that data sets have; a PIL image as float32 [channels, height, width] in [0, 1]."""
    if isinstance(value, Image.Image):
        try:
            image = eight_bits(value)
        except ValueError as error:
            raise ValueError(f"{name} is an image, and {error}") from None
        # Black and white alone become grey, what is no channel of light red, green and blue.
        mode = image.mode if image.mode in {"L", "LA", "RGB", "RGBA"} else "L" if image.mode == "1" else "RGB"
        pixels = torch.from_numpy(np.array(image.convert(mode)))
        return pixels.view(image.height, image.width, -1).permute(2, 0, 1).contiguous().float() / 255
    if isinstance(value, np.ndarray):
        value = np.array(value)  # a copy, which may be written to
    if not isinstance(value, Tensor | np.ndarray | np.generic | int | float):
        raise ValueError(f"{name} is a {form(value)}")  # noqa: TRY004  one class for all that a sample cannot be
    try:
        tensor = torch.as_tensor(value).detach()
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None
    tensor = tensor.to(_WIDENED.get(tensor.dtype, tensor.dtype))
    if tensor.dtype not in {torch.uint8, torch.int64, torch.float32, torch.float64}:
        raise ValueError(f"{name} is {form(tensor)}")
    return tensor


def facts_of(x: Any, y: Any, classes: int | Sequence[str] | None) -> DataFacts:
    """Return the facts of samples like this one; SpecError: there are classes, and y is no integer; or an image has its channels last."""
    if classes is not None and not (isinstance(y, Tensor) and y.dtype == torch.int64):
        message = f"classes are counted by integers, and y of sample 0 is {forms(y)}"
        hint = "return an integer as y, or leave `classes` out where y is no class"
        raise SpecError(Problem(message=message, hint=hint, path=("classes",)))
    for place, one in named_leaves(x):
        # Surely an image of height, width, channels, which blocks would take for channels, height, width.
        last = one.dim() == 3 and one.shape[2] in {1, 3, 4} and min(one.shape[:2]) > 4  # noqa: PLR2004  more channels than images have
        if last and (one.dtype == torch.uint8 or (one.is_floating_point() and one.min() >= 0 and one.max() <= 1)):
            message = f"x{place} of sample 0 is {form(one)}, an image whose channels come last"
            hint = "return channels, height, width: torch.as_tensor(image).permute(2, 0, 1)"
            raise SpecError(Problem(message=message, hint=hint, path=("train",)))
    names = tuple(classes) if isinstance(classes, Sequence) else None
    (shape, target_shape), (dtype, target_dtype) = (
        [mapped(of, part) for part in (x, y)]
        for of in (lambda one: tuple(one.shape), lambda one: str(one.dtype).removeprefix("torch."))
    )
    return DataFacts(
        shape=shape,
        dtype=dtype,
        target_shape=target_shape,
        target_dtype=target_dtype,
        classes=classes if names is None else len(names),
        class_names=names,
    )


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
    form: str
    """That of all samples: the names, types and shapes of that one."""
    _compared: bool = field(default=False, init=False)
    _told: int | None = field(default=None, init=False)

    def begin(self, epoch: int) -> None:
        """Tell a training Dataset its epoch, if it wants to know; RunFailed: it gives other samples in this process than in others."""
        if not self._compared and torch.distributed.is_available() and torch.distributed.is_initialized():
            self._compared = True
            if not are_equal(self.first, read_sample(_take_first("train", self.dataset))):
                message = "the training data begin with another sample in this process than on its own: they follow the process's rank"
                hint = "let the Dataset give all samples in every process: one reads the samples, and another one their targets"
                raise RunFailed(message, hint)
        if self._told != epoch:
            _tell(self.dataset, epoch)
            self._told = epoch

    def read(self, index: int, sample: Any) -> tuple[Any, Any]:
        """Return the tensors of a sample that the Dataset has given; RunFailed: it is not like the first sample of the training data."""
        try:
            read = read_sample(sample)
        except ValueError as error:
            raise RunFailed(f"sample {index} of the {self.part} data: {error}", _PAIR) from None
        if (found := described(*read)) != self.form:  # torch.stack would widen types
            message = f"sample {index} of the {self.part} data is {found}, and training sample 0 is {self.form}"
            raise RunFailed(message, "let every sample have one shape and type: crop, resize or pad")
        return read

    def stacked(self, rows: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
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
        """Load samples; errors as of `begin` and `read`."""
        at: tuple[Any, ...] = (self.part,)
        if self.part == "training":
            self.begin(epoch)
            at = seed, epoch
        rows = []
        with fork_generators():
            for index in map(int, indices):
                seed_generators(random_key(*at, index))
                rows.append(self.read(index, self.dataset[index]))
        return self.stacked(rows)


@define(kw_only=True, eq=False, slots=False)
class TorchStream(_OfDataset):
    """An IterableDataset as a training split, whose samples are of unknown number: a run says how many an epoch and a micro-batch have."""

    samples: int = 0
    micro_batch: int = 0
    in_order = True
    _source: Iterator[tuple[Any, Any]] | None = field(default=None, init=False)
    """All passes, as this process reads them; None: it has not begun, or they have raised."""
    _read_by: tuple[int, int] = field(default=(0, 0), init=False)
    """The seed and the process that read."""
    _next: int = field(default=0, init=False)
    """The number of the next sample, counted in all passes."""

    def in_epochs(self, samples: int, micro_batch: int) -> TorchStream:
        """Return the split of `samples` samples an epoch, of whose passes each is to have at least a micro-batch."""
        return evolve(self, samples=samples, micro_batch=micro_batch)

    def __getstate__(self) -> Mapping[str, Any]:
        """Return what a loader process needs, which reads the stream on its own."""
        return {**self.__dict__, "_source": None}

    def __len__(self) -> int:
        return self.samples

    def fetch(self, indices: NDArray[Any], *, seed: int, epoch: int) -> tuple[Any, Any]:
        """Read samples of an epoch; RunFailed: the stream raised, ended within its first micro-batch, or as of `begin` and `read`."""
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
        return self.stacked([found[number] for number in numbers])

    def _passes(self, seed: int) -> Iterator[tuple[Any, Any]]:
        """Yield the samples of all passes, each with the generators seeded; what a stream raises names the pass and the sample."""
        for number in count():
            samples: Iterator[Any] | None = None
            for index in count():
                with author_code(f"sample {index} of pass {number} of the training stream", error=RunFailed):
                    seed_generators(random_key(seed, number, index))
                    if samples is None:
                        self.begin(number)
                        samples = iter(self.dataset)
                    sample = next(samples, _END)
                if sample is _END:
                    break
                yield self.read(index, sample)
            if index < self.micro_batch:
                has = f"the training stream has {plural(index, 'sample')} in pass {number}"
                hint = "lower data.batch, or see why the stream ends; it must begin anew whenever it is iterated"
                raise RunFailed(f"{has}, and a micro-batch has {self.micro_batch}", hint)


_END = object()


class Torch:
    """Your own torch Datasets with samples (x, y), named as code, or made by it."""

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
        _, splits = _open(classes, train=train, test=test, validation=validation, plain=plain)
        _latest.clear()  # the next run opens them anew
        self.train, self.test, self.validation = splits["train"], splits["test"], splits.get("validation")

    @staticmethod
    def facts(*, classes: int | tuple[str, ...] | None = None, **named: Any) -> DataFacts:
        """Return what the first sample says of all."""
        return _open(classes, **named)[0]

    @staticmethod
    def of_images(*, test: str, **_: Any) -> bool:
        """Whether samples are PIL images, which become floats from 0 to 1."""
        return isinstance(_take_first("test", _make_dataset("test", test, named_code("test", test)))[0], Image.Image)


_latest: list[tuple[Any, DataFacts, Mapping[str, Any]]] = []
"""What the check of a specification has opened, behind its classes and code: once, as a Dataset may read files, and a stream begins once."""


def _open(classes: int | tuple[str, ...] | None, **named: str | None) -> tuple[DataFacts, Mapping[str, Any]]:
    """Return the facts and the splits of the Datasets that options name, which are made once.

    Raises:
        SpecError: what a name stands for is no Dataset, or its first sample cannot be trained on.
    """
    codes = {name: named_code(name, code) for name, code in named.items() if code is not None}
    for (of_classes, known), facts, splits in _latest:
        if of_classes == classes and known.keys() == codes.keys() and all(known[one] is codes[one] for one in codes):
            return facts, splits
    datasets = {name: _make_dataset(name, str(named[name]), code) for name, code in codes.items()}
    first = {name: _first_sample(name, dataset) for name, dataset in datasets.items()}["train"]
    same: dict[str, Any] = {"first": first, "form": described(*first)}
    splits = {
        name: (TorchStream if _is_iterable(one) else TorchSplit)(dataset=one, part=_PARTS[name], **same)
        for name, one in datasets.items()
    }
    if "plain" in splits and isinstance(splits["train"], TorchSplit):
        splits["train"].plain = splits["plain"]
    _latest[:] = [((classes, codes), facts_of(*first, classes), splits)]
    return _latest[0][1:]


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
    try:
        first, *others = [read_sample(_take_first(option, dataset)) for _ in range(_READS)]
    except ValueError as error:
        raise SpecError(Problem(message=f"sample 0: {error}", hint=_PAIR, path=(option,))) from None
    if all(are_equal(first, other) for other in others):
        return first
    message = "sample 0 is another one when it is read again, with the same state of all generators"
    hint = (
        "draw from random, np.random or torch without a generator of its own: they are seeded for each sample; let the __iter__ of a stream "
        "begin anew, since a resumed run reads it again"
    )
    raise SpecError(Problem(message=message, hint=hint, path=(option,)))


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
