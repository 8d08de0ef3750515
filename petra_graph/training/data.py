"""The data set of a run: its splits, checked where they are first read, and each of its epochs and evaluations as micro-batches.

    CheckedSplit    rows of a split of the data set: errors name samples, and the first ones are compared with the facts
    CheckedData     the training, validation and test samples; those of a validation share are drawn from the training's `plain` split
    OpenedData      what a run reads, and how long it is
    MicroBatches    of an epoch or an evaluation, as this process's replica and part of the network reads them

Decision: the order of an epoch is drawn whole from (seed, epoch), and the samples of a validation share from the seed and the number of
samples. So no process, no number of loader processes, no batch and no resume can change either.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray

from petra_graph.errors import PetraGraphError, Problem, RunFailed, SpecError, at_path
from petra_graph.executor.update import horizon
from petra_graph.planning.check_spec import CheckedSpec
from petra_graph.plugins.author_code import author_code
from petra_graph.plugins.data_set import IGNORED, DataFacts, DataSet, count_of_share
from petra_graph.plugins.stage_facts import Horizon
from petra_graph.plugins.tensor_trees import Tree, named_leaves
from petra_graph.runtime.stage_io import MicroBatch
from petra_graph.spec.model import Spec
from petra_graph.training.loaders import Loaders
from petra_graph.units import listed, plural

Rows = NDArray[np.intp]
"""Samples of a split, by their numbers in it."""
Part = Literal["all", "targets", "nothing"]
"""The part of a micro-batch that a process reads: the head needs targets alone, and does not read images."""
_DRAW = (0, 3)
"""Separates the draw of a share from others of the same seed: those of an epoch's order and of augmentations begin with the epoch."""


@frozen(kw_only=True, eq=False)
class CheckedSplit:
    """One split of a data set."""

    name: str
    """The data set's name, as messages say it: data set "digits"."""
    part: str
    """ "training", "validation" or "test"."""
    split: Any
    """A `Split`."""
    rows: Rows | None = None
    """The rows of the split that are its samples; None: all. Messages name samples by their rows."""
    facts: DataFacts
    _seen: set[str] = field(factory=set, init=False)
    """What has been compared with the facts."""

    def __len__(self) -> int:
        """Return the number of samples."""
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
        """Load samples as the split does, `mixed` by it if they are to be; several inputs in the order of the facts.

        Raises:
            RunFailed: the split raised, or the first that it returned is not what the data set declares.
        """

        def as_declared(samples: Any) -> Tree:
            return {name: samples[name] for name in self.facts.inputs} if self.facts.several_inputs else samples

        samples, targets = self._tried(partial(self.split.fetch, seed=seed, epoch=epoch), indices, "samples")
        samples = as_declared(samples)
        if mixed:  # it may draw for one input after the other
            with author_code(lambda: f"{self._named(indices)}, mixed", error=RunFailed):
                samples, targets = self.split.mix(samples, targets, self._rows(indices), seed=seed, epoch=epoch)
            samples = as_declared(samples)
        return samples, targets

    @property
    def fetch_targets(self) -> Callable[[Rows], Tree] | None:
        """A function that loads targets alone, where the split has one; it raises what `fetch` raises."""
        fetch = getattr(self.split, "fetch_targets", None)
        return None if fetch is None else lambda indices: self._tried(fetch, indices, "targets")

    def _rows(self, indices: Any) -> Any:
        return indices if self.rows is None else self.rows[np.asarray(indices)]

    def _named(self, indices: Sequence[int] | Rows) -> str:
        """Name samples of this split, as the subject of a message: "sample 7", "samples 440..459", or the first of scattered ones."""
        rows = [int(index) for index in self._rows(indices)]
        together = len(rows) > 1 and rows == list(range(rows[0], rows[0] + len(rows)))
        numbers = f"{rows[0]}..{rows[-1]}" if together else listed(map(str, rows))
        return f"{self.name}, sample{'s' * (len(rows) > 1)} {numbers} of its {self.part} data"

    def _tried(self, of_rows: Callable[[Any], Any], indices: Rows, what: Literal["samples", "targets"]) -> Any:
        """Return what a function of rows loads; if it raises, the message names those rows that do by themselves."""

        def raises(index: int) -> bool:
            with suppress(PetraGraphError), author_code(""):
                of_rows(self._rows(np.array([index])))
                return False
            return True

        with author_code(lambda: self._named([one for one in indices if raises(one)] or indices), error=RunFailed):
            fetched = of_rows(self._rows(indices))
        if what not in self._seen:
            if fault := fault_of(self.facts, len(indices), fetched, what):
                raise RunFailed(f"{self._named(indices)}: {fault}", "mend the data set, or the facts that it declares")
            self._seen.add(what)
        return fetched


def fault_of(facts: DataFacts, rows: int, fetched: Any, what: Literal["samples", "targets"]) -> str:
    """Say what is wrong first with fetched samples and targets, or with targets alone, without saying where; "" if nothing is."""
    parts = [("targets", facts.targets, fetched)]
    if what == "samples":
        if not isinstance(fetched, tuple | list) or len(fetched) != 2:  # noqa: PLR2004
            return f"fetch returned a {type(fetched).__name__}, not a pair of samples and targets"
        inputs = {f'["{name}"]' if name else "": one for name, one in facts.inputs.items()}
        parts = [("samples", inputs, fetched[0]), ("targets", facts.targets, fetched[1])]
    for noun, declared, tree in parts:
        found = dict(named_leaves(tree))
        if found.keys() != declared.keys():
            there, wanted = (", ".join(places) or "one tensor" for places in (found, declared))
            return f"{noun} are {there}, where the data set declares {wanted}"
        for place, (shape, dtype) in declared.items():
            one, form = found[place], f"{dtype} {[rows, *shape]} on cpu"
            came = type(one).__name__
            if isinstance(one, torch.Tensor):
                came = f"{str(one.dtype).removeprefix('torch.')} {list(one.shape)} on {one.device.type}"
            if came != form:
                return f"{noun}{place} are {came}, where the data set declares {form}"
    targets = parts[-1][2]
    if facts.classes is not None and facts.target_dtype == "int64" and targets.numel():
        low, high = int(targets.min()), int(targets.max())
        if high >= facts.classes or (low < 0 and bool(((targets < 0) & (targets != IGNORED)).any())):
            return f"targets are {low} .. {high}, where the data set declares classes 0 .. {facts.classes - 1}"
    return ""


@frozen(kw_only=True, eq=False)
class CheckedData:
    """The splits of a data set in a run."""

    facts: DataFacts
    train: CheckedSplit
    """The training samples, without those of a validation share."""
    validation: CheckedSplit | None
    test: CheckedSplit

    @classmethod
    def open(cls, checked: CheckedSpec, *, parted: bool = True) -> CheckedData:
        """Open a data set, `parted` into training and validation samples if they are to be.

        Raises:
            SpecError: files are missing, there are no such validation samples, or nothing says how long an epoch of a stream is.
            PluginError: the data set is broken.
        """
        spec, data = checked.spec, checked.data.build()
        train: Any = data.train
        if hasattr(train, "in_epochs"):
            if spec.data.workers > 1:
                message = (
                    f"a stream of samples is read in its order, by one loader process at most (got {spec.data.workers})"
                )
                hint = "set data.workers to 0 or 1; a stream may use processes of its own"
                raise SpecError(Problem(message=message, hint=hint, path=("data", "workers")))
            if spec.run.micro_batches is None:
                message = "the training samples are a stream of unknown length, and nothing says how long an epoch is"
                hint = "set run.micro_batches, the number of micro-batches of an epoch; the next epoch begins with the sample after its last one"
                raise SpecError(Problem(message=message, hint=hint, path=("run", "micro_batches")))
            micro_batch = spec.data.batch * spec.partition.replicas
            train = train.in_epochs(spec.run.micro_batches * micro_batch, micro_batch)
        held = spec.data.validation if parted else None
        return cls.of(str(checked.data), data, train, validation=held, seed=spec.run.seed)

    @classmethod
    def of(
        cls, name: str, data: DataSet, train: Any, *, validation: float | str | None = None, seed: int = 0
    ) -> CheckedData:
        """Take an opened data set's splits.

        Args:
            name: as messages say it.
            data: opened.
            train: its training split, which of a stream knows its epochs.
            validation: `data.validation` of the specification.
            seed: draws the samples of a share.

        Raises:
            SpecError: the data set has no such validation samples.
        """
        of = partial(CheckedSplit, name=name, facts=data.facts)
        training, held = of(part="training", split=train), None
        with at_path("data", "validation"):
            if isinstance(validation, str):
                own = getattr(data, validation, None)
                if not hasattr(own, "fetch"):
                    message = f'{name} has no split "{validation}"'
                    raise SpecError(message, "name one that it has, or give a share of the training samples, as in 0.1")
                held = of(part="validation", split=own)
            elif validation is not None and hasattr(train, "set_apart"):  # its samples overlap
                with author_code(f"{name} cannot set validation samples apart"):
                    first, apart = train.set_apart(validation)
                training, held = of(part="training", split=first), of(part="validation", split=apart)
            elif validation is not None:
                if (plain := getattr(train, "plain", None)) is None:
                    message = f"{name} cannot give a share of its training samples: it has no view of them without augmentation"
                    hint = (
                        "give its training split the attribute `plain` (itself, if it has none), of torch Datasets the option `plain`; or name "
                        'a split of the data set\'s own, as in data.validation = "validation"'
                    )
                    raise SpecError(message, hint)
                rows, held_rows = draw_share(len(train), validation, seed)
                training = of(part="training", split=train, rows=rows)
                held = of(part="validation", split=plain, rows=held_rows)
        return cls(facts=data.facts, train=training, validation=held, test=of(part="test", split=data.test))


def draw_share(samples: int, share: float, seed: int) -> tuple[Rows, Rows]:
    """Return the rows of the training samples and those of the validation samples, each in their order.

    Raises:
        SpecError: there would be no validation sample.
    """
    count = count_of_share(samples, share)
    if not count:
        raise SpecError(f"a share of {share:g} of {samples:,} training samples is no sample", "give a larger share")
    drawn = np.random.default_rng([seed, *_DRAW]).permutation(samples)
    return np.sort(drawn[count:]), np.sort(drawn[:count])


def order(n: int, seed: int, epoch: int) -> Rows:
    """Return the order [n] in which an epoch visits the samples of a training split."""
    return np.random.default_rng([seed, epoch]).permutation(n)


@frozen(kw_only=True)
class MicroBatches:
    """Micro-batches of an epoch or an evaluation, the same at every iteration."""

    split: CheckedSplit
    parts: Sequence[Rows] = field(eq=False)
    """The samples of each, which this process's replica reads."""
    seed: int
    epoch: int = 0
    """Which decides how samples are augmented."""
    mixed: bool = False
    part: Part = "all"
    loaders: Loaders | None = field(default=None, eq=False)
    """Loader processes that know the split; None: the calling process loads."""

    @classmethod
    def evaluation(cls, split: CheckedSplit, batch: int, *, most: int | None = None, **options: Any) -> MicroBatches:
        """Return the micro-batches of an evaluation, which reads every sample in order, also where the last micro-batch is smaller.

        Args:
            split: of the data set.
            batch: the samples of each.
            most: how many are read at most; None: all.
            options: `seed`, `part` and `loaders`.
        """
        rows, whole = np.arange(len(split)), len(split)
        if most is not None and most * batch < whole:
            # The same in every run, and drawn from the whole split, whose order may be that of classes.
            rows = np.sort(np.random.default_rng(0).permutation(whole)[: most * batch])
        parts = [rows[start : start + batch] for start in range(0, len(rows), batch)]
        return cls(split=split, parts=parts, **options)

    @property
    def said(self) -> str:
        """The samples that an evaluation reads, in words, if it does not read all."""
        read, whole = sum(self.sizes), len(self.split)
        return "" if read == whole else f"{read:,} of {whole:,} samples"

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def sizes(self) -> Sequence[int]:
        return list(map(len, self.parts))

    def __iter__(self) -> Generator[MicroBatch, None, None]:
        targets = None if self.mixed or self.part == "all" else self.split.fetch_targets
        how: dict[str, Any] = {"seed": self.seed, "epoch": self.epoch, "mixed": self.mixed}
        if self.part == "nothing":
            return
        if targets is not None:
            yield from ((torch.empty(len(part), 0), targets(part)) for part in self.parts)
        elif self.loaders is None:
            yield from (self.split.fetch(part, **how) for part in self.parts)
        else:
            yield from self.loaders.load(self.split, self.parts, how)


@frozen(kw_only=True)
class OpenedData:
    """What a run reads, and how long it is."""

    data: CheckedData
    spec: Spec
    replica: int = 0
    """The one that this process belongs to."""
    part: Part = "all"
    loaders: Loaders | None

    @property
    def whole(self) -> int:
        """Samples of a micro-batch, those of all replicas."""
        return self.spec.data.batch * self.spec.partition.replicas

    @cached_property
    def micro_batches(self) -> int:
        """In an epoch over all training data; a number for the whole run, also where the length of a Dataset follows the epoch that it is told."""
        return len(self.data.train) // self.whole

    @property
    def length(self) -> int:
        """The micro-batches of an epoch."""
        return min(self.micro_batches, self.spec.run.micro_batches or self.micro_batches)

    @property
    def horizon(self) -> Horizon:
        return horizon(self.spec, self.length)

    def epoch(self, number: int, first: int = 0) -> MicroBatches:
        """Return the micro-batches of a training epoch, counted from 0, from the `first` one on; what follows the last complete one is left out."""
        split, whole, seed, batch = self.data.train, self.whole, self.spec.run.seed, self.spec.data.batch
        visited = np.arange(len(split)) if split.in_order else order(len(split), seed, number)
        starts = (position * whole + self.replica * batch for position in range(first, self.length))
        return MicroBatches(
            split=split,
            parts=[visited[start : start + batch] for start in starts],
            seed=seed,
            epoch=number,
            mixed=split.mixes,
            part=self.part,
            loaders=self.loaders,
        )

    @property
    def evaluated(self) -> MicroBatches:
        """Of an evaluation after an epoch: every sample, or some that are spread over all, in order."""
        return self._evaluation(self.data.validation or self.data.test)

    @property
    def test(self) -> MicroBatches:
        """Of the test, likewise; those that are evaluated if there are no validation samples."""
        return self._evaluation(self.data.test)

    def _evaluation(self, split: CheckedSplit) -> MicroBatches:
        spec = self.spec
        how: dict[str, Any] = {"seed": spec.run.seed, "part": self.part, "loaders": self.loaders}
        return MicroBatches.evaluation(split, spec.data.test_batch, most=spec.run.evaluation_batches, **how)


def open_data(checked: CheckedSpec) -> OpenedData:
    """Open the data set of a run; SpecError: there are too few training samples for a micro-batch; other errors as of `CheckedData.open`."""
    spec, data = checked.spec, CheckedData.open(checked)
    splits = [split for split in (data.train, data.validation, data.test) if split is not None]
    opened = OpenedData(
        data=data, spec=spec, loaders=Loaders(workers, splits) if (workers := spec.data.workers) else None
    )
    if not opened.micro_batches:
        left = " that the validation leaves" if spec.data.validation is not None else " of the training data"
        message = f"batch must be at most the {plural(len(data.train), 'sample')}{left} (got {opened.whole})"
        hint = "training leaves out an epoch's last incomplete micro-batch, which would be all"
        raise SpecError(Problem(message=message, hint=hint, path=("data", "batch")))
    return opened
