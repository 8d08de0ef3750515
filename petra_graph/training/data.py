"""The data set of a run: its splits, checked where they are first read, and each of its epochs and evaluations as micro-batches.

Decision: the order of an epoch is drawn whole from (seed, epoch), and the samples of a validation share from the seed and the number of
samples; a loader process is handed the indices of a whole micro-batch with its split, seed and epoch. So no process, no number of loader
processes, no batch and no resume can change what is loaded, or in which order; the same processes serve all epochs and evaluations of a run.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from petra_graph.errors import PetraGraphError, Problem, RunFailed, SpecError, at_path
from petra_graph.planning.check_spec import CheckedSpec
from petra_graph.plugins.author_code import author_code
from petra_graph.plugins.data_set import IGNORED, DataFacts, count_of_share
from petra_graph.plugins.tensor_trees import Tree, form, named_leaves
from petra_graph.runtime.stage_io import MicroBatch
from petra_graph.spec.model import Spec
from petra_graph.units import listed

Rows = NDArray[np.intp]  # samples of a split, by their numbers in it
Part = Literal["all", "targets", "nothing"]  # of a micro-batch, as a process reads it: the head reads no images
# Apart from other draws of the seed: those of an epoch's order and of augmentations begin with the epoch.
_DRAW = 0, 3


@frozen(kw_only=True, eq=False)
class CheckedSplit:
    """Samples of one split of a data set: errors name samples, and the first ones are compared with the facts."""

    name: str  # the data set's, as messages say it: data set "digits"
    part: str
    split: Any
    rows: Rows | None = None  # of the split that are its samples, by which messages name them; None: all
    facts: DataFacts
    _seen: set[str] = field(factory=set, init=False)  # what has been compared with the facts

    def __len__(self) -> int:
        return len(self.split) if self.rows is None else len(self.rows)

    @property
    def in_order(self) -> bool:
        """Whether samples are read in their order, since each that is passed over costs as much as one that is read."""
        return getattr(self.split, "in_order", False)

    @property
    def mixes(self) -> bool:
        """Whether the micro-batches of a training are mixed. Their targets are then shares of the classes, which follow from the samples."""
        return hasattr(self.split, "mix")

    def fetch(self, indices: Rows, *, seed: int, epoch: int, mixed: bool = False) -> tuple[Tree, Tree]:
        """Load samples as the split does, `mixed` by it if they are to be; RunFailed: it raised, or its first samples are not as declared."""
        samples, targets = self._loaded(partial(self.split.fetch, seed=seed, epoch=epoch), indices, "samples")
        # The order of several inputs is the facts': the first node reads them in it, by position, and a mix may draw for one after the other.
        names = list(self.facts.inputs) if self.facts.several_inputs else []
        samples = {name: samples[name] for name in names} or samples
        if mixed:
            with author_code(lambda: f"{self._named(indices)}, mixed", error=RunFailed):
                samples, targets = self.split.mix(samples, targets, self._rows(indices), seed=seed, epoch=epoch)
        return {name: samples[name] for name in names} or samples, targets

    @property
    def fetch_targets(self) -> Callable[[Rows], Tree] | None:
        """A function that loads targets alone, where the split has one; it raises what `fetch` raises."""
        fetch = getattr(self.split, "fetch_targets", None)
        return None if fetch is None else lambda indices: self._loaded(fetch, indices, "targets")

    def _rows(self, indices: Any) -> Any:
        return indices if self.rows is None else self.rows[np.asarray(indices)]

    def _named(self, indices: Sequence[int] | Rows) -> str:
        return f"{self.name}, sample{'s' * (len(indices) > 1)} {listed(map(str, self._rows(indices)))} of its {self.part} data"

    def _loaded(self, load: Callable[[Any], Any], indices: Rows, what: Literal["samples", "targets"]) -> Any:
        """Return what a function of rows loads; if it raises, the message names those rows that do by themselves."""

        def raises(index: int) -> bool:
            with suppress(PetraGraphError), author_code(""):
                load(self._rows(np.array([index])))
                return False
            return True

        with author_code(lambda: self._named([one for one in indices if raises(one)] or indices), error=RunFailed):
            loaded = load(self._rows(indices))
        if what not in self._seen:
            if fault := _fault_of(self.facts, len(indices), loaded, what):
                raise RunFailed(f"{self._named(indices)}: {fault}", "mend the data set, or the facts that it declares")
            self._seen.add(what)
        return loaded


def _fault_of(facts: DataFacts, rows: int, loaded: Any, what: Literal["samples", "targets"]) -> str:
    """Return what is wrong first with samples and targets, or with targets alone, as the end of a sentence; "" if nothing is."""
    inputs = {f'["{name}"]' if name else "": one for name, one in facts.inputs.items()}
    declared = {"samples": inputs, "targets": facts.targets} if what == "samples" else {"targets": facts.targets}
    both = loaded if what == "samples" else [loaded]
    if not isinstance(both, tuple | list) or len(both) != len(declared):
        return f"fetch returned a {type(loaded).__name__}, not a pair of samples and targets"
    for (noun, parts), tree in zip(declared.items(), both, strict=True):
        wanted = [f"{place} {dtype} {[rows, *shape]} on cpu".lstrip() for place, (shape, dtype) in parts.items()]
        found = [f"{at} {form(one)} on {getattr(one, 'device', 'cpu')}".lstrip() for at, one in named_leaves(tree)]
        if sorted(found) != sorted(wanted):
            return f"{noun} are {', '.join(found)}, where the data set declares {', '.join(wanted)}"
    targets = both[-1]
    if facts.classes is not None and facts.target_dtype == "int64" and targets.numel():
        low, high = int(targets.min()), int(targets.max())
        if high >= facts.classes or (low < 0 and bool(((targets < 0) & (targets != IGNORED)).any())):
            return f"targets are {low} .. {high}, where the data set declares classes 0 .. {facts.classes - 1}"
    return ""


# --- processes that load ---

_Request = tuple[int, Any, Mapping[str, Any]]  # the number of a split, a micro-batch's indices, how to `fetch` it


class Loaders:
    """Processes that load micro-batches, which start when they are first needed and live until they are closed; a new iteration abandons the one before."""

    def __init__(self, count: int = 0, splits: Sequence[Any] = ()) -> None:
        """Begin without processes; each will have all `splits` in its memory. With a count of 0, this process loads."""
        self._count, self._splits = count, list(splits)
        self._requests: list[_Request] = []
        self._loader: DataLoader[MicroBatch | PetraGraphError] | None = None
        self._processes: Any = None  # the loader's iterator, one for all iterations

    def load(self, split: Any, parts: Sequence[Any], how: Mapping[str, Any]) -> Iterator[MicroBatch]:
        """Load parts of a split, each the indices of a micro-batch; `how` are the arguments of its `fetch`, whose errors are raised."""
        if not self._count:
            yield from (split.fetch(part, **how) for part in parts)
            return
        number = self._splits.index(split)
        self._requests[:] = [(number, part, how) for part in parts]
        if self._loader is None:
            self._loader = DataLoader(
                _Fetched(self._splits),
                batch_size=None,
                sampler=self._requests,  # read again by every iteration
                collate_fn=_as_it_is,
                num_workers=self._count,
                persistent_workers=True,
                worker_init_fn=_begin,
                generator=torch.Generator(),  # the default one would be advanced, and only if there are loaders
            )
        self._processes = loaded = iter(self._loader)
        for item in loaded:
            if isinstance(item, PetraGraphError):
                raise item
            yield item

    def close(self) -> None:
        """End the processes, even while an iteration is still referenced: an error's traceback refers to the one that it ended."""
        if self._processes is not None:
            self._processes._shutdown_workers()  # noqa: SLF001  no public method ends them while the iterator is held
        self._loader = self._processes = None


@frozen(eq=False)
class _Fetched(Dataset["MicroBatch | PetraGraphError"]):
    splits: Sequence[Any]

    def __getitem__(self, request: _Request) -> MicroBatch | PetraGraphError:
        """Return a micro-batch, or our error: torch would rebuild one that leaves a loader process from text, without its problems."""
        number, part, how = request
        try:
            fetched: MicroBatch = self.splits[number].fetch(part, **how)
        except PetraGraphError as error:
            return error
        return fetched


def _as_it_is(batch: Any) -> Any:
    return batch


def _begin(_: int) -> None:
    """Begin in a loader process: Ctrl-C and a closed terminal are for the parent, which ends its workers itself, in good order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # What is open for reading is opened again: forks share the position in a file, and would read what another one has sought.
    for opened in Path("/proc/self/fd").iterdir() if sys.platform == "linux" else ():
        number = int(opened.name)
        with suppress(OSError):  # the folder itself is closed by now
            if opened.is_file() and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                own = os.open(opened, os.O_RDONLY | os.O_CLOEXEC)
                os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
                os.dup2(own, number, inheritable=os.get_inheritable(number))
                os.close(own)


# --- what is read ---


@frozen(kw_only=True, eq=False)
class MicroBatches:
    """Micro-batches of an epoch or an evaluation, the same at every iteration; `parts` are the samples of each that this replica reads."""

    data: OpenedData
    split: CheckedSplit
    parts: Sequence[Rows]
    epoch: int = 0
    mixed: bool = False

    def __iter__(self) -> Generator[MicroBatch, None, None]:
        data, how = self.data, {"seed": self.data.spec.run.seed, "epoch": self.epoch, "mixed": self.mixed}
        if data.part == "targets" and not self.mixed and (targets := self.split.fetch_targets) is not None:
            yield from ((torch.empty(len(part), 0), targets(part)) for part in self.parts)
        elif data.part != "nothing":
            yield from data.loaders.load(self.split, self.parts, how)


@frozen(kw_only=True, eq=False)
class OpenedData:
    """The samples of a data set, parted for a run, and what of them this process reads."""

    spec: Spec
    facts: DataFacts
    train: CheckedSplit  # without the samples of a validation share
    validation: CheckedSplit | None
    test: CheckedSplit
    loaders: Loaders = field(factory=Loaders)
    replica: int = 0  # the one that this process belongs to
    part: Part = "all"

    @classmethod
    def open(cls, checked: CheckedSpec, *, parted: bool = True) -> OpenedData:
        """Open a data set, `parted` into training and validation samples if they are to be; SpecError, PluginError: it cannot be read so."""
        spec, name, data = checked.spec, str(checked.data), checked.data.build()
        train: Any = data.train
        if hasattr(train, "in_epochs"):
            if spec.data.workers > 1:
                message = f"a stream is read in its order, by one loader process at most (got {spec.data.workers})"
                raise SpecError(Problem(message=message, path=("data", "workers")))
            if spec.run.micro_batches is None:
                message = "the training is a stream of unknown length: set the number of micro-batches of an epoch"
                raise SpecError(Problem(message=message, path=("run", "micro_batches")))
            train = train.in_epochs(spec.run.micro_batches * spec.data.batch * spec.partition.replicas)
        wanted, rows, held_rows, held = spec.data.validation if parted else None, None, None, None
        with at_path("data", "validation"):
            if isinstance(wanted, str):
                held = getattr(data, wanted, None)
                if not hasattr(held, "fetch"):
                    hint = "name one that it has, or give a share, as in 0.1"
                    raise SpecError(f'{name} has no split "{wanted}"', hint)
            elif wanted is not None and hasattr(train, "set_apart"):  # its samples overlap
                with author_code(f"{name} cannot set validation samples apart"):
                    train, held = train.set_apart(wanted)
            elif wanted is not None:
                if (held := getattr(train, "plain", None)) is None:
                    message = f"{name} cannot give a share of its training samples: it has no view of them without augmentation"
                    raise SpecError(message, "its training split, or a torch Dataset by its options, may have `plain`")
                rows, held_rows = draw_share(len(train), wanted, spec.run.seed)
        of = partial(CheckedSplit, name=name, facts=data.facts)
        splits: dict[str, Any] = {
            "train": of(part="training", split=train, rows=rows),
            "validation": None if held is None else of(part="validation", split=held, rows=held_rows),
            "test": of(part="test", split=data.test),
        }
        loaders = Loaders(spec.data.workers, [one for one in splits.values() if one is not None])
        return cls(spec=spec, facts=data.facts, loaders=loaders, **splits)

    @property
    def by_index(self) -> CheckedSplit:
        """The samples of which some may be looked at: a stream begins once, so those of the test stand for it."""
        return self.test if self.train.in_order else self.train

    @property
    def whole(self) -> int:
        """Samples of a micro-batch, those of all replicas."""
        return self.spec.data.batch * self.spec.partition.replicas

    @cached_property
    def length(self) -> int:
        """The micro-batches of an epoch, for the whole run: the length of a Dataset may follow the epoch that it is told."""
        every = len(self.train) // self.whole
        return min(every, self.spec.run.micro_batches or every)

    def epoch(self, number: int, first: int = 0) -> MicroBatches:
        """Return the micro-batches of a training epoch, counted from 0, from the `first` one on; what follows the last complete one is left out."""
        split, batch = self.train, self.spec.data.batch
        visited = np.arange(len(split)) if split.in_order else order(len(split), self.spec.run.seed, number)
        starts = (position * self.whole + self.replica * batch for position in range(first, self.length))
        parts = [visited[start : start + batch] for start in starts]
        return MicroBatches(data=self, split=split, parts=parts, epoch=number, mixed=split.mixes)

    def evaluation(self, split: CheckedSplit, most: int | None = None) -> MicroBatches:
        """Return the micro-batches, `most` of them at most, of an evaluation, which reads samples in order, also where the last micro-batch is smaller."""
        batch, whole = self.spec.data.test_batch, len(split)
        rows = np.arange(whole)
        if most is not None and most * batch < whole:
            # The same in every run, and drawn from the whole split, whose order may be that of classes.
            rows = np.sort(np.random.default_rng(0).permutation(whole)[: most * batch])
        parts = [rows[start : start + batch] for start in range(0, len(rows), batch)]
        return MicroBatches(data=self, split=split, parts=parts)


def draw_share(samples: int, share: float, seed: int) -> tuple[Rows, Rows]:
    """Return the rows of the training and of the validation samples, both sorted; SpecError: none would be left to validate."""
    count = count_of_share(samples, share)
    if not count:
        raise SpecError(f"a share of {share:g} of {samples:,} training samples is no sample", "give a larger share")
    drawn = np.random.default_rng([seed, *_DRAW]).permutation(samples)
    return np.sort(drawn[count:]), np.sort(drawn[:count])


def order(n: int, seed: int, epoch: int) -> Rows:
    """Return the order [n] in which an epoch visits the samples of a training split."""
    return np.random.default_rng([seed, epoch]).permutation(n)
