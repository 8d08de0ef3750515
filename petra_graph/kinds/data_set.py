"""A data set: its samples are what its facts say, and each follows from its index, the seed and the epoch alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import attrs
from attrs import frozen

from petra_graph.errors import SpecError, shown
from petra_graph.kinds.author_code import author_code, resolve_location
from petra_graph.kinds.data_facts import DataFacts, facts_fault
from petra_graph.kinds.declaration import Declaration
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_kind import Form, PluginKind
from petra_graph.kinds.tensor_trees import Tree
from petra_graph.spec.value_types import plain

if TYPE_CHECKING:
    import numpy as np


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
        read: the location of a function (options, path) -> samples [*shape] or [n, *shape], for `petra-graph predict`: how a
            file becomes samples; None: images are brought to the size of a sample. Arrays (.npy) are read without it.
        codec: the location of a function (options, facts) -> TextCodec, where the samples are windows of text; `facts` are those of
            the opened data set, which a run keeps: a trained network continues a text without the data. None: they are not text.
    """

    facts: Callable[[Any], DataFacts]
    training_samples: Callable[[Any], int | None] | None = None
    completed: Callable[[Any], Any] | None = None
    read: str | None = None
    codec: str | None = None


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


def count_of_share(samples: int, share: float) -> int:
    """Return how many of the training samples a share of them is."""
    return round(share * samples)


def _used(plugin: Plugin, arguments: Sequence[Any], built: Any) -> Any:
    """Expect that the opened data set has the facts of its declaration, with which the network was planned."""
    for name in ("train", "test", "facts"):
        if not hasattr(built, name):
            raise plugin.broken(f"its build returns {type(built).__name__} without `{name}`")
    if fault := facts_fault(built.facts):
        raise plugin.broken(f"its facts {fault}")
    declared = cast(DataSetDeclaration, plugin.declaration).facts(arguments[0])
    for one in attrs.fields(DataFacts):
        said, found = getattr(declared, one.name), getattr(built.facts, one.name)
        reordered = isinstance(said, Mapping) and said == found and list(said) != list(found)
        if (said is not None and said != found) or reordered:  # what the declaration leaves open may be anything
            raise plugin.broken(f"its declaration says {one.name} = {shown(said)}, and its files {shown(found)}")
    return built


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
        otherwise="is not a class with `facts`, a DataFacts of its samples",
        declared=_declared,
    ),
    used=_used,
)


def declared_facts(plugin: Plugin, options: Any) -> DataFacts:
    """Return the facts that a data set's declaration gives.

    Raises:
        PluginError: its function failed, or did not return facts that samples could have.
    """
    with author_code(f"{plugin.owned} cannot say what its samples are"):
        facts = cast(DataSetDeclaration, plugin.declaration).facts(options)
    if fault := facts_fault(facts):
        raise plugin.broken(f"the facts of its declaration {fault}")
    return facts


def completed_options(plugin: Plugin, options: Any) -> Any:
    """Return a data set's options, where what only its files tell is filled in.

    Raises:
        SpecError: files are missing; paths count from the options.
        PluginError: its function failed.
    """
    change = cast(DataSetDeclaration, plugin.declaration).completed
    if change is None:
        return options
    with author_code(f"{plugin.owned} cannot complete its options"):
        return change(options)


def declared_samples(plugin: Plugin, options: Any) -> int | None:
    """Return the number of training samples that a data set's declaration gives; None where it does not say.

    Raises:
        PluginError: its function failed.
    """
    count = cast(DataSetDeclaration, plugin.declaration).training_samples
    if count is None:
        return None
    with author_code(f"{plugin.owned} cannot say how many samples it has"):
        found: int | None = plain(count(options))
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
