"""The data set of a run: opened, and each of its epochs and evaluations as micro-batches.

Decision: the order of an epoch is drawn whole from (seed, epoch), so no process and no number of loader processes can change it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import torch
from attrs import evolve, field, frozen
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from petra_graph.errors import PetraGraphError, Problem, SpecError
from petra_graph.executor.update import horizon
from petra_graph.planning.check_spec import CheckedSpec
from petra_graph.plugins.checked_samples import CheckedData, CheckedSplit
from petra_graph.plugins.data_set import Split
from petra_graph.plugins.stage_facts import Horizon
from petra_graph.runtime.stage_io import MicroBatch
from petra_graph.spec.model import Spec
from petra_graph.training.stream_split import split_of_stream
from petra_graph.units import plural

Rows = NDArray[np.intp]
"""Samples of a split, by their numbers in it."""
Part = Literal["all", "targets", "nothing"]
"""The part of a micro-batch that a process reads: the head needs targets alone, and does not read images."""


def order(n: int, seed: int, epoch: int) -> Rows:
    """Return the order [n] in which an epoch visits the samples of a training split."""
    return np.random.default_rng([seed, epoch]).permutation(n)


@frozen(kw_only=True)
class MicroBatches:
    """Micro-batches of an epoch or an evaluation, the same at every iteration."""

    split: Split
    parts: Sequence[Rows] = field(eq=False)
    """The samples of each, which this process's replica reads."""
    seed: int
    epoch: int = 0
    """Which decides how samples are augmented."""
    mixed: bool = False
    """Whether samples are mixed. Targets are then shares of the classes, which follow from the samples."""
    part: Part = "all"
    loaders: Loaders | None = field(default=None, eq=False)
    """Loader processes that know the split; None: the calling process loads."""
    said: str = ""
    """The samples that an evaluation reads, in words, if it does not read all."""

    @classmethod
    def evaluation(
        cls, split: Split, batch: int, *, seed: int, most: int | None = None, loaders: Loaders | None = None
    ) -> MicroBatches:
        """Return the micro-batches of an evaluation, which reads every sample in order, also where the last micro-batch is smaller.

        Args:
            most: how many are read at most; None: all.
        """
        rows, whole, said = np.arange(len(split)), len(split), ""
        if most is not None and most * batch < whole:
            # The same in every run, and drawn from the whole split, whose order may be that of classes.
            rows = np.sort(np.random.default_rng(0).permutation(whole)[: most * batch])
            said = f"{len(rows):,} of {whole:,} samples"
        parts = [rows[start : start + batch] for start in range(0, len(rows), batch)]
        return cls(split=split, parts=parts, seed=seed, loaders=loaders, said=said)

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def sizes(self) -> Sequence[int]:
        return list(map(len, self.parts))

    def __iter__(self) -> Generator[MicroBatch, None, None]:
        targets = getattr(self.split, "fetch_targets", None)
        fetched: Iterable[MicroBatch | PetraGraphError] = ()
        if self.part == "targets" and targets is not None and not self.mixed:
            fetched = ((torch.empty(len(part), 0), targets(part)) for part in self.parts)
        elif self.part != "nothing" and self.loaders is not None:
            fetched = self.loaders.load(self.split, self.seed, self.epoch, self.parts, mixed=self.mixed)
        elif self.part != "nothing":
            fetched = (fetch(self.split, self.seed, self.epoch, part, mixed=self.mixed) for part in self.parts)
        for item in fetched:
            if isinstance(item, PetraGraphError):
                raise item
            yield item


def fetch(split: Split, seed: int, epoch: int, part: Rows, *, mixed: bool) -> MicroBatch | PetraGraphError:
    """Return a micro-batch, mixed by the split if it is to be, or the error of petra-graph that loading it raised.

    Such errors are values, since torch would rebuild an exception that leaves a loader process from a text with the process's
    traceback in it, and its problems would be lost.
    """
    mixing: Any = split
    try:
        fetched: MicroBatch = mixing.fetch(part, seed=seed, epoch=epoch)
        return mixing.mix(*fetched, part, seed=seed, epoch=epoch) if mixed else fetched
    except PetraGraphError as error:
        return error


@frozen(kw_only=True)
class OpenedData:
    """What a run reads, and how long it is."""

    data: CheckedData
    spec: Spec
    replica: int = 0
    """The one that this process belongs to."""
    micro_batches: int
    """In an epoch over all training data."""
    length: int
    """The micro-batches of an epoch."""
    part: Part = "all"
    loaders: Loaders | None
    evaluated: MicroBatches
    """Of an evaluation after an epoch: every sample, or some that are spread over all, in order."""
    test: MicroBatches
    """Of the test, likewise; those that are evaluated if there are no validation samples."""
    horizon: Horizon

    @property
    def whole(self) -> int:
        """Samples of a micro-batch, those of all replicas."""
        return self.spec.data.batch * self.spec.partition.replicas

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
            mixed=split.mix is not None,
            part=self.part,
            loaders=self.loaders,
        )

    def read_in_part(self, part: Part, replica: int) -> OpenedData:
        """Return what one of several processes reads."""
        evaluated, test = (evolve(one, part=part) for one in (self.evaluated, self.test))
        return evolve(self, part=part, replica=replica, evaluated=evaluated, test=test)


def checked_data(checked: CheckedSpec, *, parted: bool = True) -> CheckedData:
    """Open a data set, parted into training and validation samples if they are to be; errors as of `open_data`."""
    spec, built = checked.spec, checked.data.build()
    held, training = spec.data.validation if parted else None, split_of_stream(built, spec)
    return CheckedData.of(str(checked.data), built, validation=held, seed=spec.run.seed, training=training)


def open_data(checked: CheckedSpec) -> OpenedData:
    """Open the data set of a run.

    Raises:
        SpecError: files are missing, there are no such validation samples, or too few training samples for a micro-batch.
        PluginError: the data set is broken.
    """
    spec, data = checked.spec, checked_data(checked)
    whole, samples = spec.data.batch * spec.partition.replicas, len(data.train)
    if samples < whole:
        left = " that the validation leaves" if spec.data.validation is not None else " of the training data"
        message = f"batch must be at most the {plural(samples, 'sample')}{left} (got {whole})"
        hint = "training leaves out an epoch's last incomplete micro-batch, which would be all"
        raise SpecError(Problem(message=message, hint=hint, path=("data", "batch")))
    micro_batches = samples // whole
    length = min(micro_batches, spec.run.micro_batches or micro_batches)
    splits = [split for split in (data.train, data.validation, data.test) if split is not None]
    loaders = Loaders(spec.data.workers, splits) if spec.data.workers else None

    def evaluation(split: CheckedSplit) -> MicroBatches:
        batch, most = spec.data.test_batch, spec.run.evaluation_batches
        return MicroBatches.evaluation(split, batch, seed=spec.run.seed, most=most, loaders=loaders)

    return OpenedData(
        data=data,
        spec=spec,
        micro_batches=micro_batches,
        length=length,
        loaders=loaders,
        evaluated=evaluation(data.validation or data.test),
        test=evaluation(data.test),
        horizon=horizon(spec, length),
    )


# --- Processes that load micro-batches.
#
# Decision: a process is handed the indices of a whole micro-batch with its split, seed and epoch. So neither the number of processes
# nor their timing can change what is loaded or in which order, and the same processes serve all epochs and evaluations of a run.


_OF_TERMINALS = {signal.SIGINT, signal.SIGHUP}
_Request = tuple[int, int, int, bool, Rows]
"""The number of a split, a seed, an epoch, whether the micro-batch is mixed, and its indices."""


class Loaders:
    """Loader processes, which start when they are first needed and live until they are closed.

    They iterate over one epoch or evaluation at a time: a new iteration abandons the one before.
    """

    def __init__(self, count: int, splits: Sequence[Split]) -> None:
        """Begin without processes; each will have all `splits` in its memory."""
        self._count, self._splits = count, splits
        self._requests: list[_Request] = []
        self._loader: DataLoader[MicroBatch | PetraGraphError] | None = None
        self._processes: Any = None
        """The loader's iterator, one for all iterations."""

    def load(
        self, split: Split, seed: int, epoch: int, parts: Sequence[Rows], *, mixed: bool
    ) -> Iterator[MicroBatch | PetraGraphError]:
        """Load parts of a split, each the indices of a micro-batch."""
        number = next(number for number, known in enumerate(self._splits) if known is split)
        self._requests[:] = [(number, seed, epoch, mixed, part) for part in parts]
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
        # Held back while processes start, as one that has not reached `_begin` dies with a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_TERMINALS)
        try:
            self._processes = loaded = iter(self._loader)
            return loaded
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def close(self) -> None:
        """End the processes, even while an iteration is still referenced: an error's traceback refers to the one that it ended."""
        if self._processes is not None:
            self._processes._shutdown_workers()  # noqa: SLF001  no public method ends them while the iterator is held
        self._loader = self._processes = None


@frozen(eq=False)
class _Fetched(Dataset["MicroBatch | PetraGraphError"]):
    splits: Sequence[Split]

    def __getitem__(self, request: _Request) -> MicroBatch | PetraGraphError:
        number, seed, epoch, mixed, part = request
        return fetch(self.splits[number], seed, epoch, part, mixed=mixed)


def _as_it_is(batch: Any) -> Any:
    return batch


def _begin(_: int) -> None:
    """Begin in a loader process.

    Ctrl-C and a closed terminal reach all its processes: the parent ends its workers itself, in good order.
    """
    for ends in _OF_TERMINALS:
        signal.signal(ends, signal.SIG_IGN)
    sys.excepthook = _report_unless_parent_left
    # What is open for reading is opened again: forks share the position in a file, and would read what another one has sought.
    for opened in Path("/proc/self/fd").iterdir() if sys.platform == "linux" else ():
        number = int(opened.name)
        with suppress(OSError):  # the folder itself is closed by now
            if opened.is_file() and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                own = os.open(opened, os.O_RDONLY | os.O_CLOEXEC)
                os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
                os.dup2(own, number, inheritable=os.get_inheritable(number))
                os.close(own)


def _report_unless_parent_left(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    """Report nothing if the parent was interrupted while it took a tensor from the thread that hands tensors over."""
    if not issubclass(kind, ConnectionError | EOFError):
        sys.__excepthook__(kind, value, trace)
