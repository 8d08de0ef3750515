"""A data set: its samples are what its facts say, and each follows from its index, the seed and the epoch alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol, cast, get_args

import attrs
from attrs import evolve, field, frozen

from petra_graph.errors import shown
from petra_graph.kinds.declaration import LOCATION, Declaration, described
from petra_graph.kinds.expected_calls import ExpectedCall, call_faults
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_kind import Form, PluginKind
from petra_graph.kinds.tensor_trees import Tree
from petra_graph.spec.model import Dtype
from petra_graph.spec.value_types import plain

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

IGNORED = -100
"""The class index that torch's losses pass over."""
_FETCH = ExpectedCall("fetch", ("indices",), ("seed", "epoch"))
_FETCH_TARGETS = ExpectedCall("fetch_targets", ("indices",))
_SET_APART = ExpectedCall("set_apart", ("share",))
_ITERATE = ExpectedCall("iterate", (), ("seed", "number"))
_LENGTHS = ExpectedCall("lengths", ("indices",))
_MIX = ExpectedCall("mix", ("samples", "targets", "indices"), ("seed", "epoch"))
_TARGET_TYPES = ("int64", "float32", "float64")


def _plain(value: Any) -> Any:
    """Return a number, or numbers in a tuple or a dictionary, in Python's own types: sizes often come from numpy."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return tuple(map(_plain, value)) if isinstance(value, tuple) else plain(value)


@frozen(kw_only=True)
class DataFacts:
    """The properties of a data set that its declaration gives before any file is opened.

    Attributes:
        shape: of one sample, without the batch dimension; images are channels, height, width. Of several inputs a sample, a dictionary
            of shapes: {"tokens": (128,), "mask": (128,)}; the first node's block reads them in this order, forward(tokens, mask).
        dtype: of the samples; of several inputs, a dictionary of the same names.
        classes: class indices in targets are below this; None where that depends on the files, or where targets are not
            classes.
        target_shape: of one target, without the batch dimension: () for a class or a number, (tokens,) for a class each token,
            (height, width) for one each pixel. Of several targets a sample, a tuple or a dictionary of shapes: {"labels": (5,), "boxes":
            (5, 4)}. They have no `classes`.
        target_dtype: int64 for class indices, floats for values; of several targets, in the same tuple or dictionary.
        mean: of each channel in [0, 1] (uint8 divided by 255); None: no normalisation. Several inputs have none.
        std: of each channel, likewise; given with the mean or not at all.
        class_names: the names of the classes, by class index; None where they are not known.
        lengths: the lengths to which micro-batches are padded, ascending, where samples differ in their first dimension; the last one
            is that of `shape`. (): all samples have one shape.
    """

    shape: Any = field(converter=_plain)
    dtype: Any = "uint8"
    classes: int | None = field(default=None, converter=_plain)
    target_shape: Any = field(default=(), converter=_plain)
    target_dtype: Any = "int64"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    class_names: tuple[str, ...] | None = None
    lengths: tuple[int, ...] = field(default=(), converter=_plain)

    def padded(self, length: int) -> DataFacts:
        """Return the facts of a micro-batch that is padded to a length."""
        target = (length, *self.target_shape[1:]) if self.target_of_positions else self.target_shape
        return evolve(self, shape=(length, *self.shape[1:]), target_shape=target, lengths=())

    @property
    def target_of_positions(self) -> bool:
        """Whether a target has as many rows as its sample, one for each position, so that both are padded."""
        return (
            not self.several_inputs
            and not self.several_targets
            and bool(self.shape)
            and self.target_shape[:1] == self.shape[:1]
        )

    @property
    def pads_targets(self) -> bool:
        """Whether micro-batches have several lengths, and targets with them."""
        return bool(self.lengths) and self.target_of_positions

    @property
    def of_tokens(self) -> bool:
        """Whether samples are windows of tokens, with a target for each token."""
        return self.dtype == "int64" and len(self.shape) == 1 and self.target_shape == self.shape

    @property
    def several_inputs(self) -> bool:
        """Whether a sample has several inputs, in a dictionary."""
        return isinstance(self.shape, Mapping)

    @property
    def inputs(self) -> Mapping[str, tuple[Any, Any]]:
        """Shape and type of each input by its name, in the order in which the first node reads them; of a single one by ""."""
        if not self.several_inputs:
            return {"": (self.shape, self.dtype)}
        return {name: (shape, self.dtype[name]) for name, shape in self.shape.items()}

    @property
    def samples_in_words(self) -> str:
        """Type and shape of the samples, of several inputs with their names."""
        return ", ".join(f"{name} {dtype} {list(shape)}".lstrip() for name, (shape, dtype) in self.inputs.items())

    @property
    def several_targets(self) -> bool:
        """Whether a sample has several targets, in a tuple or a dictionary."""
        shape = self.target_shape
        return isinstance(shape, Mapping) or any(isinstance(one, tuple) for one in shape)

    @property
    def targets(self) -> Mapping[str, tuple[Any, Any]]:
        """Shape and type of each target by its place, `["boxes"]` or [1]; of a single one by ""."""
        if not self.several_targets:
            return {"": (self.target_shape, self.target_dtype)}
        keys = self.target_shape if isinstance(self.target_shape, Mapping) else range(len(self.target_shape))
        return {
            f'["{key}"]' if isinstance(key, str) else f"[{key}]": (self.target_shape[key], self.target_dtype[key])
            for key in keys
        }

    def faults(self) -> Iterator[str]:
        """Yield what is wrong, as the end of a sentence."""
        if fault := next(self._input_faults(), ""):
            yield fault
            return
        yield from self._target_faults()
        if self.classes is not None and (type(self.classes) is not int or self.classes < 1):
            yield f"have classes = {self.classes!r}, not a number of classes"
        if (self.mean is None) != (self.std is None):
            yield "have one of mean and std; give both, or neither"
        yield from self._normalisation_faults()
        if self.classes is not None and self.class_names is not None and len(self.class_names) != self.classes:
            yield f"have {len(self.class_names)} class_names, and classes = {self.classes}"
        if self.lengths:
            yield from self._length_faults()

    def _length_faults(self) -> Iterator[str]:
        lengths = self.lengths
        if self.several_inputs:
            yield "have lengths and several inputs; give one input, or samples of one shape"
        elif not _is_shape(lengths) or list(lengths) != sorted(set(lengths)):
            yield f"have lengths = {lengths!r}, not ascending integers above 0"
        elif tuple(self.shape)[:1] != lengths[-1:]:
            yield f"have lengths = {lengths!r}, whose last one is not the first dimension of shape = {self.shape!r}"
        elif self.several_targets:
            yield "have lengths and several targets; give one target, or samples of one shape"
        elif self.mean is not None and len(self.mean) > 1:
            yield "have lengths, and a mean of each channel, which is the same dimension; give one mean and one std"

    def _input_faults(self) -> Iterator[str]:
        if self.several_inputs:
            if not self.shape or not all(isinstance(name, str) and name for name in self.shape):
                yield f"have shape = {self.shape!r}, without a name for each input"
            if not isinstance(self.dtype, Mapping) or self.dtype.keys() != self.shape.keys():
                yield f"have dtype = {self.dtype!r}, without one type for each of shape = {self.shape!r}"
        for name, (shape, dtype) in self.inputs.items():
            at = f'["{name}"]' if name else ""
            if not _is_shape(shape):
                yield f"have shape{at} = {shape!r}, not a tuple of integers above 0"
            if not isinstance(dtype, str) or dtype not in get_args(Dtype):
                yield f"have dtype{at} = {dtype!r}, not one of {', '.join(get_args(Dtype))}"

    def _target_faults(self) -> Iterator[str]:
        if not isinstance(self.target_shape, tuple | Mapping):
            yield f"have target_shape = {self.target_shape!r}, not a tuple of integers above 0"
            return
        try:
            targets = self.targets
            alike = not self.several_targets or len(self.target_dtype) == len(self.target_shape)
        except (LookupError, TypeError):
            alike = False
        if not alike:
            yield f"have target_dtype = {self.target_dtype!r}, without one type for each of target_shape = {self.target_shape!r}"
            return
        for place, (shape, dtype) in targets.items():
            if not _is_shape(shape):
                yield f"have target_shape{place} = {shape!r}, not a tuple of integers above 0"
            if dtype not in _TARGET_TYPES:
                yield f"have target_dtype{place} = {dtype!r}, not one of {', '.join(_TARGET_TYPES)}"
        if self.several_targets and self.classes is not None:
            yield "have classes, which are those of one target, and several targets; leave `classes` out"

    def _normalisation_faults(self) -> Iterator[str]:
        if self.several_inputs:
            if self.mean is not None or self.std is not None:
                yield "have mean and std, which are of one input, and several inputs; normalise in the data set, or in the first node"
            return
        channels = self.shape[0] if self.shape else 0
        for name in ("mean", "std"):
            values = getattr(self, name)
            if values is None:
                continue
            if not isinstance(values, tuple | list) or not all(isinstance(value, Real) for value in values):
                yield f"have {name} = {values!r}, not a tuple of numbers"
                return
            if len(values) not in {1, channels} or not channels:
                yield f"have {len(values)} values in {name}, and samples of {channels} channels"
            if self.dtype == "uint8" and not all(0 <= value <= 1 for value in values):
                yield f"have {name} = {values}, not within [0, 1]: samples of uint8 are divided by 255"
        if self.std is not None and not all(math.isfinite(value) and value > 0 for value in self.std):
            yield f"have std = {self.std}, not above 0: samples are divided by it"


def _is_shape(value: object) -> bool:
    return isinstance(value, tuple) and all(type(size) is int and size > 0 for size in value)


def zero_targets(facts: DataFacts, rows: int, device: torch.device | None = None) -> Tree:
    """Return targets as a data set declares them, of zeros."""
    import torch

    def zeros(shape: tuple[int, ...], dtype: str) -> Tensor:
        return torch.zeros(rows, *shape, dtype=getattr(torch, dtype), device=device)

    shape, dtype = facts.target_shape, facts.target_dtype
    if not facts.several_targets:
        return zeros(shape, dtype)
    if isinstance(shape, Mapping):
        return {key: zeros(one, dtype[key]) for key, one in shape.items()}
    return tuple(zeros(*pair) for pair in zip(shape, dtype, strict=True))


def lengthened(fetched: Any, shape: Any) -> Any:
    """Return samples or targets [n, *shape], with zeros behind those that are padded to a shorter length; several inputs as they are."""
    if isinstance(shape, Mapping) or tuple(fetched.shape[1:]) == shape:
        return fetched
    whole = fetched.new_zeros(len(fetched), *shape)
    whole[:, : fetched.shape[1]] = fetched
    return whole


def padded_length(allowed: Sequence[int], longest: int) -> int:
    """Return the length to which a micro-batch is padded: the least of `DataFacts.lengths` that holds its longest sample.

    Raises:
        ValueError: none holds it.
    """
    for length in allowed:
        if length >= longest:
            return length
    raise ValueError(f"a sample has the length {longest}, and the longest allowed one is {allowed[-1]}")


def facts_fault(facts: object) -> str:
    """Return the first fault of what should be a data set's facts, as the end of a sentence; "" where they are right."""
    if not isinstance(facts, DataFacts):
        return f"are {described(facts)}, not DataFacts"
    return next(facts.faults(), "")


@frozen(kw_only=True)
class DataSetDeclaration(Declaration):
    """A data set; `build` names a function (options) -> DataSet that opens the files.

    Where files are missing, it raises `SpecError` with a hint that names the remedy; paths of problems count from its own options.

    Attributes:
        facts: a torch-free function of the options alone; it opens no file.
        training_samples: a torch-free function (options) -> the number of training samples, or None; it does not count files. Plans
            then say what an epoch takes.
        completed: a torch-free function (options) -> the same options, where those that only the files tell are filled in, such as
            the number of classes; None: the options are complete. It reads nothing if they are given, and raises `SpecError`
            if files are missing. The resolved specification has its result.
        suggested: a torch-free function (options) -> the same options, as their files suggest them to `petra-graph new spec`; None:
            likely values stay. Values that are given there stay in any case.
        read: the location of a function (options, path) -> samples [*shape] or [n, *shape], for `petra-graph predict`: how a
            file becomes samples; None: images are brought to the size of a sample. Arrays (.npy) are read without it.
        codec: the location of a function (options, facts) -> TextCodec, where the samples are windows of text; `facts` are those of
            the opened data set, which a run keeps: a trained network continues a text without the data. None: they are not text.
    """

    facts: Callable[[Any], DataFacts]
    training_samples: Callable[[Any], int | None] | None = None
    completed: Callable[[Any], Any] | None = None
    suggested: Callable[[Any], Any] | None = None
    read: str | None = None
    codec: str | None = None

    def faults(self) -> Iterator[str]:
        if not callable(getattr(self, "facts", None)):
            yield "has `facts` that cannot be called"
        for name in ("read", "codec"):
            location = getattr(self, name)
            if location is not None and not LOCATION.fullmatch(str(location)):
                yield f'has {name} = {location!r}, not "module:attribute"'


class TextCodec(Protocol):
    """Text as tokens, which are the classes of a data set, and back."""

    def encode(self, text: str) -> Sequence[int]:
        """Return the tokens of a text.

        Raises:
            SpecError: some of it has no token.
        """

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; no token is refused."""


class Split(Protocol):
    """The training or the test split of a data set.

    A split may also have `fetch_targets(indices) -> targets [n, *target_shape]`: a process that hosts the head, but not the first
    stage, then decodes no image. And it may have `files`, the paths of its samples' files: a run then notices later that one has gone,
    or has another name or size.

    A training split of which `data.validation` can take a share has `plain`, a split of the same samples in the same order, without
    augmentation: itself, if it has none. If samples overlap, as windows of a text do, it has `set_apart(share)` instead, which returns a
    training split and a validation split that have nothing in common, of which the second is about this share.

    The training split may have `mix(samples, targets, indices, *, seed, epoch)`, as for mixup. A run calls it with each micro-batch of the
    training that it has fetched (one replica's samples, of these indices); it returns samples of the same form, and for each the shares of
    the classes, float32 [n, classes], with which the loss is called. It is a function of its arguments. Evaluations are not mixed.

    If the facts have `lengths`, the split has `lengths(indices)`, which returns the length of each sample, integers [n], without loading them:
    every process asks for those of a whole epoch. A micro-batch is padded to `padded_length(facts.lengths, the longest of them)`.
    """

    def __len__(self) -> int:
        """Return the number of samples."""

    def fetch(self, indices: np.ndarray, *, seed: int, epoch: int) -> tuple[Tree, Tree]:
        """Load samples: images [n, *shape] in the data set's dtype, and targets [n, *target_shape], several in their tuple or dictionary.

        If the facts have lengths, the first dimension of the samples is the length to which these are padded.
        Several inputs are a dictionary of tensors by their names.

        Augmentation is a function of (seed, epoch, index) alone: a sample depends neither on the other indices of the
        call, nor on the calling process, nor on the number of calls. Images may be in channels-last memory format.
        """


class Stream(Protocol):
    """A training split of unknown length, whose samples come in an order of its own; an epoch of it is `run.micro_batches`."""

    def iterate(self, *, seed: int, number: int) -> Iterator[tuple[Tree, Tree]]:
        """Yield the samples of a pass, one by one: their tensors without a batch dimension, and their targets.

        What it yields is a function of (seed, number of the pass). Global generators are seeded by the caller, for each sample.
        """


def is_stream(split: object) -> bool:
    return callable(getattr(split, "iterate", None))


class DataSet(Protocol):
    """An opened data set. It may have further splits, as `validation`, which `data.validation` names."""

    @property
    def train(self) -> Split:
        """The training split, or a `Stream`."""

    @property
    def test(self) -> Split:
        """The test split."""

    @property
    def facts(self) -> DataFacts:
        """The declaration's facts, completed from the files."""


def split_faults(name: str, split: Any) -> Iterator[str]:
    """Yield what is wrong with a split, as the end of a sentence."""
    if name == "train" and is_stream(split):
        yield from call_faults(split, [_ITERATE])
        return
    try:
        samples = len(split)
    except Exception as error:  # noqa: BLE001  its code may raise anything
        yield f"the length of its split `{name}` cannot be had: {type(error).__name__}: {error}"
        return
    if not samples:
        yield f"its split `{name}` is empty; where files are missing, its build raises SpecError"
    if not callable(getattr(split, "fetch", None)):
        yield f"its split `{name}` is {described(split)} without the method `fetch`"
    yield from call_faults(split, [_FETCH, _FETCH_TARGETS, _SET_APART, _LENGTHS, _MIX])


def count_of_share(samples: int, share: float) -> int:
    """Return how many of the training samples a share of them is."""
    return round(share * samples)


def _built_faults(plugin: Plugin, arguments: Sequence[Any], built: Any) -> Iterator[str]:
    for name in ("train", "test", "facts"):
        if not hasattr(built, name):
            yield f"its build returns {described(built)} without `{name}`"
    for name in ("train", "test"):
        yield from split_faults(name, getattr(built, name))
    fault = facts_fault(built.facts)
    if fault:
        yield f"its facts {fault}"
    for name in ("train", "test"):
        if getattr(built.facts, "lengths", ()) and not hasattr(getattr(built, name), "lengths"):
            yield f"its facts have lengths, and its split `{name}` has no method `lengths(indices)`, which returns the length of each sample"
    declared = cast(DataSetDeclaration, plugin.declaration).facts(arguments[0])
    for one in attrs.fields(DataFacts):
        said, found = getattr(declared, one.name), getattr(built.facts, one.name)
        reordered = isinstance(said, Mapping) and said == found and list(said) != list(found)
        if (said is not None and said != found) or reordered:  # what the declaration leaves open may be anything
            yield f"its declaration says {one.name} = {shown(said)}, and its files {shown(found)}"


def _declared(data: Any, name: str) -> Mapping[str, Any]:
    facts: DataFacts = data.facts
    locations = {part: f"{name}.{part}" if hasattr(data, part) else None for part in ("read", "codec")}
    return {"facts": lambda _: facts, **locations}


DATA_SET = PluginKind(
    noun="data set",
    group="petra_graph.datasets",
    table="data",
    declaration=DataSetDeclaration,
    form=Form(
        fits=lambda value: isinstance(value, type) and isinstance(getattr(value, "facts", None), DataFacts),
        having="class with `facts`, as data sets are",
        otherwise="is not a class with `facts`, a DataFacts of its samples",
        hint="give it `facts = DataFacts(...)`, and the attributes `train` and `test` where it is built; or name a torch Dataset as an "
        'option of the data set "torch"',
        declared=_declared,
    ),
    built_faults=_built_faults,
)
