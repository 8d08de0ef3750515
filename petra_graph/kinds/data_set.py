"""A data set: its samples are what its facts say, and each follows from its index, the seed and the epoch alone."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, get_args

import attrs
from attrs import evolve, field, frozen

from petra_graph.errors import SpecError, shown
from petra_graph.kinds.author_code import author_code, resolve_location
from petra_graph.kinds.broken_promise import BrokenPromise, all_equal
from petra_graph.kinds.declaration import LOCATION, Declaration, described
from petra_graph.kinds.declaration_promises import DECLARATION
from petra_graph.kinds.expected_calls import ExpectedCall, call_faults
from petra_graph.kinds.generators import moved_since, seeded, states
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_kind import Form, Part, PluginKind, Promise
from petra_graph.kinds.plugin_trial import PluginTrial
from petra_graph.kinds.tensor_trees import Tree, is_several, leaves, named_leaves
from petra_graph.spec.model import Dtype
from petra_graph.spec.value_types import plain

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

_ROWS, _ROWS_OF_RUN, _SCANNED = 6, 2, 256
"""Samples of one call, those in a run, and targets that are looked at."""
_COMPARED, _AT_ONCE = 4, 8
"""Test samples that are compared with those of the training, and targets that are fetched together until two differ."""
_IGNORED = -100
"""The class index that torch's losses pass over."""
_FETCH = ExpectedCall("fetch", ("indices",), ("seed", "epoch"))
_FETCH_TARGETS = ExpectedCall("fetch_targets", ("indices",))
_PARTS = ("samples", "targets")
_TARGET_TYPES = ("int64", "float32", "float64")
Samples = tuple["Tensor", ...]
"""The samples, and the targets behind them."""


def _plain(value: Any) -> Any:
    """Return a number, or numbers in a tuple or a dictionary, in Python's own types: sizes often come from numpy."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return tuple(map(_plain, value)) if isinstance(value, tuple) else plain(value)


@frozen(kw_only=True)
class DataFacts:
    """The properties of a data set that its declaration gives before any file is opened.

    Attributes:
        shape: of one sample, without the batch dimension; images are channels, height, width.
        dtype: of the samples.
        classes: class indices in targets are below this; None where that depends on the files, or where targets are not
            classes.
        target_shape: of one target, without the batch dimension: () for a class or a number, (tokens,) for a class each token,
            (height, width) for one each pixel. Of several targets a sample, a tuple or a dictionary of shapes: {"labels": (5,), "boxes":
            (5, 4)}. They have no `classes`.
        target_dtype: int64 for class indices, floats for values; of several targets, in the same tuple or dictionary.
        mean: of each channel in [0, 1] (uint8 divided by 255); None: no normalisation.
        std: of each channel, likewise; given with the mean or not at all.
        class_names: the names of the classes, by class index; None where they are not known.
    """

    shape: tuple[int, ...] = field(converter=_plain)
    dtype: Literal["uint8", "int64", "float32", "float64"] = "uint8"
    classes: int | None = field(default=None, converter=_plain)
    target_shape: Any = field(default=(), converter=_plain)
    target_dtype: Any = "int64"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    class_names: tuple[str, ...] | None = None

    @property
    def of_tokens(self) -> bool:
        """Whether samples are windows of tokens, with a target for each token."""
        return self.dtype == "int64" and len(self.shape) == 1 and self.target_shape == self.shape

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
        shape = self.shape
        if not _is_shape(shape):
            yield f"have shape = {shape!r}, not a tuple of integers above 0"
            return
        if self.dtype not in get_args(Dtype):
            yield f"have dtype = {self.dtype!r}, not one of {', '.join(get_args(Dtype))}"
        yield from self._target_faults()
        if self.classes is not None and (type(self.classes) is not int or self.classes < 1):
            yield f"have classes = {self.classes!r}, not a number of classes"
        if (self.mean is None) != (self.std is None):
            yield "have one of mean and std; give both, or neither"
        yield from self._normalisation_faults()
        if self.classes is not None and self.class_names is not None and len(self.class_names) != self.classes:
            yield f"have {len(self.class_names)} class_names, and classes = {self.classes}"

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
    """

    def __len__(self) -> int:
        """Return the number of samples."""

    def fetch(self, indices: np.ndarray, *, seed: int, epoch: int) -> tuple[torch.Tensor, Tree]:
        """Load samples: images [n, *shape] in the data set's dtype, and targets [n, *target_shape], several in their tuple or dictionary.

        Augmentation is a function of (seed, epoch, index) alone: a sample depends neither on the other indices of the
        call, nor on the calling process, nor on the number of calls. Images may be in channels-last memory format.
        """


class DataSet(Protocol):
    """An opened data set."""

    @property
    def train(self) -> Split:
        """The training split."""

    @property
    def test(self) -> Split:
        """The test split."""

    @property
    def facts(self) -> DataFacts:
        """The declaration's facts, completed from the files."""


def declared_facts(plugin: Plugin, options: Any) -> DataFacts:
    """Return the facts that a data set's declaration gives.

    Raises:
        PluginError: its function failed, or did not return facts that samples could have.
    """
    declaration = cast(DataSetDeclaration, plugin.declaration)
    with author_code(f"{plugin.owned} cannot say what its samples are"):
        facts = declaration.facts(options)
    if fault := facts_fault(facts):
        raise plugin.broken(f"the facts of its declaration {fault}")
    return facts


def completed_options(plugin: Plugin, options: Any) -> Any:
    """Return a data set's options, where what only its files tell is filled in.

    Raises:
        SpecError: files are missing; paths count from the options.
        PluginError: its function failed, or did not return such options.
    """
    return _changed_options(plugin, options, "completed", "complete its options")


def suggested_options(plugin: Plugin, options: Any) -> Any:
    """Return a data set's options as its files suggest them; errors as of `completed_options`."""
    return _changed_options(plugin, options, "suggested", "suggest options")


def _changed_options(plugin: Plugin, options: Any, name: str, act: str) -> Any:
    change = getattr(plugin.declaration, name)
    if change is None:
        return options
    with author_code(f"{plugin.owned} cannot {act}"):
        found = change(options)
    if not isinstance(found, type(options)):
        raise plugin.broken(f"`{name}` of its declaration returns {described(found)}, not its options")
    return found


def codec_of(plugin: Plugin, options: Any, facts: DataFacts) -> TextCodec:
    """Return the codec of a data set's text; `facts` are those of the opened data set.

    Raises:
        SpecError: its samples are not text.
        PluginError: its function failed.
    """
    location = cast(DataSetDeclaration, plugin.declaration).codec
    if location is None:
        raise SpecError(
            f"{plugin} is not text: it does not say how a text becomes tokens",
            "use a run of a network that was trained on text",
        )
    make = resolve_location(location, f"{plugin.owned} cannot read text")
    with author_code(f"{plugin.owned} cannot read text"):
        codec: TextCodec = make(options, facts)
    return codec


def declared_samples(plugin: Plugin, options: Any) -> int | None:
    """Return the number of training samples that a data set's declaration gives; None where it does not say.

    Raises:
        PluginError: its function failed, or did not return a number.
    """
    count = cast(DataSetDeclaration, plugin.declaration).training_samples
    if count is None:
        return None
    with author_code(f"{plugin.owned} cannot say how many samples it has"):
        found = _plain(count(options))
    if found is not None and (not isinstance(found, int) or found < 0):
        raise plugin.broken(
            f"`training_samples` of its declaration returns {described(found)}, not a number of samples"
        )
    return found


def _built_faults(plugin: Plugin, arguments: Sequence[Any], built: Any) -> Iterator[str]:
    for name in ("train", "test", "facts"):
        if not hasattr(built, name):
            yield f"its build returns {described(built)} without `{name}`"
    for name in ("train", "test"):
        split = getattr(built, name)
        try:
            samples = len(split)
        except Exception as error:  # noqa: BLE001  its code may raise anything
            yield f"the length of its split `{name}` cannot be had: {type(error).__name__}: {error}"
            return
        if not samples:
            yield f"its split `{name}` is empty; where files are missing, its build raises SpecError"
        if not callable(getattr(split, "fetch", None)):
            yield f"its split `{name}` is {described(split)} without the method `fetch`"
        yield from call_faults(split, [_FETCH, _FETCH_TARGETS])
    fault = facts_fault(built.facts)
    if fault:
        yield f"its facts {fault}"
    yield from _contradictions(cast(DataSetDeclaration, plugin.declaration).facts(arguments[0]), built.facts)


def _contradictions(declared: DataFacts, opened: DataFacts) -> Iterator[str]:
    """Yield where an opened data set contradicts its declaration; what the declaration leaves open may be anything."""
    for one in attrs.fields(DataFacts):
        said, found = getattr(declared, one.name), getattr(opened, one.name)
        if said is not None and said != found:
            yield f"its declaration says {one.name} = {shown(said)}, and its files {shown(found)}"


def samples_fault(facts: DataFacts, rows: int, fetched: Any) -> str:
    """Return the first fault of a fetched micro-batch, as a sentence without the place of its subject; "" where nothing is wrong.

    Args:
        facts: of the opened data set.
        rows: samples that were asked for.
        fetched: what the split returned.
    """
    import torch

    several = isinstance(fetched, tuple | list) and len(fetched) == len(_PARTS) and facts.several_targets
    parts = fetched[:1] if several else fetched
    if not (
        isinstance(fetched, tuple | list)
        and len(fetched) == len(_PARTS)
        and all(isinstance(x, torch.Tensor) for x in parts)
    ):
        inside = f" of {', '.join(type(x).__name__ for x in fetched)}" if isinstance(fetched, tuple | list) else ""
        return f"fetch returned a {type(fetched).__name__}{inside}, not a tuple of two tensors"
    samples, targets = fetched
    return _tensor_fault("samples", samples, (rows, *facts.shape), facts.dtype) or targets_fault(facts, rows, targets)


def targets_fault(facts: DataFacts, rows: int, targets: Any) -> str:
    """Return the first fault of fetched targets, as `samples_fault`."""
    import torch

    if facts.several_targets:
        found = dict(named_leaves(targets)) if is_several(targets) else {"": targets}
        if found.keys() != facts.targets.keys() or not all(isinstance(one, torch.Tensor) for one in found.values()):
            return f"targets are a {type(targets).__name__} of {', '.join(found)}, where the data set declares tensors {', '.join(facts.targets)}"
        faults = (
            _tensor_fault(f"targets{at}", found[at], (rows, *shape), dtype)
            for at, (shape, dtype) in facts.targets.items()
        )
        return next(filter(None, faults), "")
    if not isinstance(targets, torch.Tensor):
        return f"fetch_targets returned a {type(targets).__name__}, not a tensor"
    fault = _tensor_fault("targets", targets, (rows, *facts.target_shape), facts.target_dtype)
    if fault or facts.classes is None or facts.target_dtype != "int64" or not targets.numel():
        return fault
    low, high = int(targets.min()), int(targets.max())
    if high >= facts.classes or (low < 0 and bool(((targets < 0) & (targets != _IGNORED)).any())):
        return f"targets are {low} .. {high}, where the data set declares classes 0 .. {facts.classes - 1}"
    return ""


def not_finite(fetched: tuple[Tensor, Tree]) -> str:
    """Return which part of a fetched micro-batch is not finite; "" where all is."""
    samples, targets = fetched
    parts = [("samples", samples), *((f"targets{at}", one) for at, one in named_leaves(targets))]
    return next((name for name, part in parts if part.is_floating_point() and not bool(part.isfinite().all())), "")


def _tensor_fault(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: str) -> str:
    import torch

    if tuple(tensor.shape) != shape:
        return f"{shape[0]} {name} have the shape {list(tensor.shape)}, where the data set declares {list(shape)}"
    if tensor.dtype != getattr(torch, dtype):
        return f"{name} are {str(tensor.dtype).removeprefix('torch.')}, where the data set declares {dtype}"
    if tensor.device.type != "cpu":
        return f"{name} are on {tensor.device}, not on the CPU"
    return ""


@frozen(kw_only=True)
class DataSetTrial(PluginTrial):
    """A data set with options; it is opened once.

    Attributes:
        plugin: the data set.
        options: an instance of its own options class.
        seed: of the calls that fetch.
        of_run: the data set as a run has opened it, instead of a new one; two samples of each split are then tried.
    """

    seed: int = 0
    of_run: DataSet | None = field(default=None, repr=False, eq=False)
    _opened: list[DataSet] = field(factory=list, init=False, repr=False, eq=False)

    @staticmethod
    def of_kind() -> PluginKind:
        return DATA_SET

    def open(self) -> DataSet:
        """Return the data set, opened at the first call.

        Raises:
            SpecError: its files are missing.
        """
        if self.of_run is not None:
            return self.of_run
        if not self._opened:
            self._opened.append(self.build(self.options))
        return self._opened[0]

    @property
    def splits(self) -> Iterator[tuple[str, Split, NDArray[np.intp]]]:
        """The splits by name, each with some indices, out of order."""
        import numpy as np

        for name, split in (("train", self.open().train), ("test", self.open().test)):
            generator = np.random.default_rng(self.seed)
            if self.of_run is not None:
                yield name, split, generator.choice(len(split), min(_ROWS_OF_RUN, len(split)), replace=False)
            else:
                yield name, split, generator.permutation(len(split))[:_ROWS]

    def fetch(self, split: Split, indices: NDArray[np.intp], *, seed: int | None = None, epoch: int = 0) -> Samples:
        """Load samples."""
        return _loaded(split, indices, self.seed if seed is None else seed, epoch)


def _loaded(split: Split, indices: NDArray[np.intp], seed: int, epoch: int) -> Samples:
    samples, targets = split.fetch(indices, seed=seed, epoch=epoch)
    return samples, *leaves(targets)


def check_data_set_construction(trial: DataSetTrial) -> None:
    """`build` opens a data set with `train`, `test` and `facts`, which are those of the declaration, completed."""
    first, again = (declared_facts(trial.plugin, trial.options) for _ in range(2))
    if first != again:
        raise BrokenPromise(
            "construction", "its declaration gives other facts each time", "make them of the options alone"
        )
    trial.open()


def check_samples(trial: DataSetTrial) -> None:
    """`fetch` returns samples [n, *shape] and targets [n, *target_shape], of the declared types, on the CPU, all finite."""
    facts = trial.open().facts
    for name, split, indices in trial.splits:
        fetched: Any = split.fetch(indices, seed=trial.seed, epoch=0)
        fault = samples_fault(evolve(facts, classes=None), len(indices), fetched)
        wrong = "" if fault else not_finite(fetched)
        if fault or wrong:
            found = f"`{name}`: {fault or f'{wrong} are not finite'}"
            raise BrokenPromise("samples", found, "mend fetch, or the facts of the declaration")


def check_classes(trial: DataSetTrial) -> None:
    """Where the facts have a number of classes, class indices are below it, from 0; -100 is passed over by losses."""
    import numpy as np

    facts = trial.open().facts
    for name, split, _ in trial.splits:
        some = np.random.default_rng(trial.seed).permutation(len(split))[:_SCANNED]
        fault = targets_fault(facts, len(some), split.fetch(some, seed=trial.seed, epoch=0)[1])
        if fault:
            remedy = "number classes from 0, and count all of them in the facts"
            raise BrokenPromise("classes", f"`{name}`: {fault}", remedy)


def check_rows(trial: DataSetTrial) -> None:
    """A sample is the same alone and among others, in any order, twice in one call: it follows from its own index."""
    for name, split, indices in trial.splits:
        _expect_rows(name, split, indices, trial.seed)


def _expect_rows(name: str, split: Split, indices: NDArray[np.intp], seed: int) -> None:
    import numpy as np
    import torch

    remedy = "make a sample of its index, the seed and the epoch: draw with np.random.default_rng([seed, epoch, index])"
    whole = _loaded(split, indices, seed, 0)
    alone = [_loaded(split, indices[row : row + 1], seed, 0) for row in range(len(indices))]
    together = tuple(map(torch.cat, zip(*alone, strict=True)))
    if not all_equal(whole, together):
        raise BrokenPromise("rows", f"samples of `{name}` are others when they are fetched one by one", remedy)
    twice = _loaded(split, np.concatenate([indices[::-1], indices[:1]]), seed, 0)
    expected = tuple(torch.cat([part.flip(0), part[:1]]) for part in whole)
    if not all_equal(twice, expected):
        raise BrokenPromise("rows", f"samples of `{name}` are others when their order is reversed", remedy)


def check_same_samples(trial: DataSetTrial) -> None:
    """The same index, seed and epoch give the same bits, whatever was fetched before and generators stand at."""
    for name, split, indices in trial.splits:
        _expect_same_samples(name, split, indices, trial.seed)


def _expect_same_samples(name: str, split: Split, indices: NDArray[np.intp], seed: int) -> None:
    remedy = "draw with np.random.default_rng([seed, epoch, index]); remember nothing between calls"
    with seeded(1):
        first = _loaded(split, indices, seed, 3)
        split.fetch(indices, seed=seed, epoch=4)
    before = states()
    with seeded(2):
        again = _loaded(split, indices, seed, 3)
    if not all_equal(first, again):
        raise BrokenPromise("repeatable", f"samples of `{name}` are others at the second call", remedy)
    split.fetch(indices, seed=seed, epoch=0)
    moved = moved_since(before)
    if moved:
        found = f"fetch of `{name}` moved the global generator of {' and '.join(moved)}"
        raise BrokenPromise("repeatable", found, remedy)


def check_apart(trial: DataSetTrial) -> None:
    """Test samples are not those of the training, in the same places or at the end of them: the test would measure memory.

    Training samples that are augmented are others, and so are those of a shuffled copy: neither is noticed.
    """
    import numpy as np
    import torch

    train, test = trial.open().train, trial.open().test
    some = np.unique(np.linspace(0, min(len(train), len(test)) - 1, _COMPARED).astype(np.intp))
    samples, *_ = trial.fetch(test, some)
    if len(torch.unique(samples.flatten(1), dim=0)) < len(some):  # alike among themselves
        return
    for first in {0, max(0, len(train) - len(test))}:
        if torch.equal(trial.fetch(train, some + first)[0], samples):
            found = f"the test samples {', '.join(map(str, some))} are the training samples {', '.join(map(str, some + first))}"
            raise BrokenPromise("apart", found, "keep samples for the test that the training does not see")


def check_targets_differ(trial: DataSetTrial) -> None:
    """Where there are classes, the targets of the training samples are not all of one class."""
    import numpy as np

    facts, train = trial.open().facts, trial.open().train
    if facts.classes is None or facts.classes == 1:
        return
    some = np.random.default_rng(trial.seed).permutation(len(train))[:_SCANNED]
    seen: set[int] = set()
    for first in range(0, len(some), _AT_ONCE):
        indices = some[first : first + _AT_ONCE]
        alone = getattr(train, "fetch_targets", None)
        targets = trial.fetch(train, indices)[1] if alone is None else alone(indices)
        seen |= set(targets.unique().tolist())
        if len(seen - {_IGNORED}) > 1:
            return
    found = f"{len(some)} training samples, drawn at random, have the target {min(seen - {_IGNORED}, default=_IGNORED)} alone"
    raise BrokenPromise("targets differ", f"{found}, of {facts.classes} classes", "see how fetch reads the targets")


def check_test_samples(trial: DataSetTrial) -> None:
    """Test samples are the same in each epoch and for each seed, so that evaluations can be compared."""
    *_, (_, split, indices) = trial.splits
    if not all_equal(_loaded(split, indices, trial.seed, 0), _loaded(split, indices, trial.seed + 1, 5)):
        found = "test samples are others in another epoch, or with another seed"
        raise BrokenPromise("test samples", found, "augment training samples alone")


def check_targets_alone(trial: DataSetTrial) -> None:
    """`fetch_targets`, where a split has it, returns the targets that `fetch` returns."""
    for name, split, indices in trial.splits:
        _expect_targets_alone(name, split, indices, trial.seed)


def _expect_targets_alone(name: str, split: Split, indices: NDArray[np.intp], seed: int) -> None:
    import torch

    alone = getattr(split, "fetch_targets", None)
    if alone is None:
        return
    found, expected = (dict(named_leaves(one)) for one in (alone(indices), split.fetch(indices, seed=seed, epoch=0)[1]))
    if found.keys() != expected.keys() or not all(
        isinstance(found[at], torch.Tensor) and found[at].dtype == one.dtype and torch.equal(found[at], one)
        for at, one in expected.items()
    ):
        message = f"fetch_targets of `{name}` gives other targets than fetch"
        raise BrokenPromise("targets alone", message, "let fetch call fetch_targets, or leave it out")


def check_own_memory(trial: DataSetTrial) -> None:
    """Fetched tensors are the caller's own: what is written to them does not reach the data set."""
    import torch

    for name, split, indices in trial.splits:
        first = trial.fetch(split, indices)
        kept = tuple(part.clone() for part in first)
        for part in first:
            part.copy_(part + 1 if part.dtype != torch.bool else ~part)
        if not all_equal(trial.fetch(split, indices), kept):
            found = f"a write to fetched samples of `{name}` changed the data set"
            raise BrokenPromise("own memory", found, "index with an array, which copies, or return x.clone()")


def check_workers(trial: DataSetTrial) -> None:
    """A split can be pickled, and its copy gives the same samples: loader processes that are not forked read a copy."""
    for name, split, indices in trial.splits:
        try:
            copy = pickle.loads(pickle.dumps(split))  # noqa: S301  what the line itself has pickled
        except Exception as error:
            found = f"its split `{name}` cannot be pickled: {type(error).__name__}: {error}"
            raise BrokenPromise("workers", found, "hold paths and arrays, not open files, lambdas or locks") from error
        if not all_equal(trial.fetch(copy, indices, epoch=2), trial.fetch(split, indices, epoch=2)):
            found = f"a copy of its split `{name}` gives other samples"
            raise BrokenPromise("workers", found, "let a sample follow from what is pickled")


def _is_text(trial: DataSetTrial) -> bool:
    return cast(DataSetDeclaration, trial.plugin.declaration).codec is not None


def check_text(trial: DataSetTrial) -> None:
    """A text that tokens were decoded to becomes tokens below the number of classes, and these the same text again."""
    facts = trial.open().facts
    codec = codec_of(trial.plugin, trial.options, facts)
    for name, split, indices in trial.splits:
        for sample in trial.fetch(split, indices)[0].tolist():
            text = codec.decode(sample)
            tokens = list(codec.encode(text))
            if any(not 0 <= token < (facts.classes or 0) for token in tokens):
                found = f"of a sample of `{name}`, tokens are {min(tokens)} .. {max(tokens)}, and there are {facts.classes} classes"
            elif codec.decode(tokens) != text:
                found = f"a sample of `{name}` is {shown(text)}, and comes back as {shown(codec.decode(tokens))}"
            else:
                continue
            raise BrokenPromise("text", found, "let encode and decode of the codec use one table of tokens")


def _trials(plugin: Plugin, options: Any, _: Sequence[Any]) -> Sequence[DataSetTrial]:
    trial = DataSetTrial.of(plugin, options)
    trial.open()
    return [trial]


def _declares_itself(value: object) -> bool:
    return isinstance(value, type) and isinstance(getattr(value, "facts", None), DataFacts)


def _declared(data: Any, name: str) -> Mapping[str, Any]:
    facts: DataFacts = data.facts
    locations = {part: f"{name}.{part}" if hasattr(data, part) else None for part in ("read", "codec")}
    return {"facts": lambda _: facts, **locations}


_COMPARES, _DRAWS = "four samples of the test, twice", "eight targets at a time until two differ, 256 at most"
_RUN, _KIT = "two samples of each split", "six samples of each split"

DATA_SET = PluginKind(
    noun="data set",
    group="petra_graph.datasets",
    table="data",
    declaration=DataSetDeclaration,
    form=Form(
        fits=_declares_itself,
        having="class with `facts`, as data sets are",
        otherwise="is not a class with `facts`, a DataFacts of its samples",
        hint="give it `facts = DataFacts(...)`, and the attributes `train` and `test` where it is built; or name a torch Dataset as an "
        'option of the data set "torch"',
        declared=_declared,
    ),
    promises=(
        DECLARATION,
        Promise("construction", check_data_set_construction, build="", foundation=True),
        Promise(
            "samples",
            check_samples,
            build="every micro-batch; whether it is finite before a run, and where a loss is not",
            kit=_KIT,
            foundation=True,
        ),
        Promise("classes", check_classes, build="every micro-batch", kit="256 targets"),
        Promise("rows", check_rows, before_run=_RUN, kit=_KIT),
        Promise("repeatable", check_same_samples, before_run=_RUN, kit=_KIT),
        Promise("test samples", check_test_samples, before_run=_RUN, kit=_KIT),
        Promise("apart", check_apart, before_run=_COMPARES, kit=_COMPARES, doubt=True),
        Promise("targets differ", check_targets_differ, before_run=_DRAWS, kit=_DRAWS, doubt=True),
        Promise("targets alone", check_targets_alone, before_run=_RUN, kit=_KIT),
        Promise("text", check_text, kit=_KIT, applies=_is_text),
        Promise("own memory", check_own_memory, kit=_KIT),
        Promise("workers", check_workers, kit=_KIT),
    ),
    trial=DataSetTrial,
    trials=_trials,
    built_faults=_built_faults,
    parts=(
        Part(
            kind="dataset",
            summary="a data set",
            example="noisy-stripes",
            suffix="data",
            entry="declared:NoisyStripes",
            module=("data.py", "The data set."),
            options="samples = 512",
        ),
    ),
)
