"""A data set: its samples are what its facts say, and each follows from its index, the seed and the epoch alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import attrs
from attrs import frozen

from petra_graph.errors import shown
from petra_graph.kinds.data_facts import DataFacts, facts_fault
from petra_graph.kinds.declaration import LOCATION, Declaration, described
from petra_graph.kinds.expected_calls import ExpectedCall, call_faults
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_kind import Form, PluginKind
from petra_graph.kinds.tensor_trees import Tree

if TYPE_CHECKING:
    import numpy as np

_FETCH = ExpectedCall("fetch", ("indices",), ("seed", "epoch"))
_FETCH_TARGETS = ExpectedCall("fetch_targets", ("indices",))
_SET_APART = ExpectedCall("set_apart", ("share",))
_ITERATE = ExpectedCall("iterate", (), ("seed", "number"))
_MIX = ExpectedCall("mix", ("samples", "targets", "indices"), ("seed", "epoch"))


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
    """

    def __len__(self) -> int:
        """Return the number of samples."""

    def fetch(self, indices: np.ndarray, *, seed: int, epoch: int) -> tuple[Tree, Tree]:
        """Load samples: images [n, *shape] in the data set's dtype, and targets [n, *target_shape], several in their tuple or dictionary.

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
    yield from call_faults(split, [_FETCH, _FETCH_TARGETS, _SET_APART, _MIX])


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
