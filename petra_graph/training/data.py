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
from petra_graph.training.stream_split import StreamSplit, split_of_stream
from petra_graph.units import plural

Part = Literal["all", "targets", "nothing"]
"""The part of a micro-batch that a process reads: the head needs targets alone, and does not read images."""


def order(n: int, seed: int, epoch: int) -> NDArray[np.intp]:
    """Return the order [n] in which an epoch visits the samples of a training split."""
    return np.random.default_rng([seed, epoch]).permutation(n)


def spread_rows(count: int, most: int | None) -> NDArray[np.intp]:
    """Return the rows of a split, in their order: all of them, or `most`.

    They are the same in every run, and drawn from the whole split, whose order may be that of classes.
    """
    if most is None or most >= count:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).permutation(count)[:most])


@frozen(kw_only=True)
class MicroBatches:
    """Micro-batches of one epoch, the same at every iteration.

    Training takes `shuffle` and `drop_last` (shapes are static, so an incomplete micro-batch is left out); evaluation
    takes neither, and reads every sample in order.
    """

    split: Split
    rows: NDArray[np.intp] | None = field(default=None, eq=False)
    """The samples that are visited, in this order unless `shuffle`; None: all of the split."""
    of: int | None = None
    """The number of samples of which `rows` are an evaluation's part."""
    batch: int
    seed: int
    epoch: int
    loaders: Loaders | None = field(default=None, eq=False)
    """Loader processes that know the split; None: the calling process loads."""
    shuffle: bool
    drop_last: bool
    part: Part = "all"
    replica: int = 0
    """The replica whose rows are loaded; `batch` counts one replica's rows, a micro-batch has those of all replicas."""
    replicas: int = 1
    limit: int | None = None
    """The most micro-batches of an iteration; None: all."""
    first: int = 0
    """Position of the micro-batch that an iteration begins with; those before it are not loaded."""

    def __attrs_post_init__(self) -> None:
        if self.drop_last and self.samples < self.whole:
            message = (
                f"batch must be at most the {plural(self.samples, 'sample')} of the training data (got {self.whole})"
            )
            hint = "training leaves out an epoch's last incomplete micro-batch, which would be all"
            raise SpecError(Problem(message=message, hint=hint, path=("data", "batch")))

    @property
    def samples(self) -> int:
        """Samples that an epoch visits, those of an incomplete micro-batch among them."""
        return len(self.split) if self.rows is None else len(self.rows)

    @property
    def said(self) -> str:
        """The samples that an evaluation reads, in words, if it does not read all; "": all."""
        return "" if self.of is None or self.of == self.samples else f"{self.samples:,} of {self.of:,} samples"

    @property
    def whole(self) -> int:
        """Samples of a micro-batch, those of all replicas."""
        return self.batch * self.replicas

    def __len__(self) -> int:
        complete, rest = divmod(self.samples, self.whole)
        count = complete + (rest > 0 and not self.drop_last)
        return count if self.limit is None else min(count, self.limit)

    @property
    def mixes(self) -> bool:
        """Whether samples are mixed: in training, if the split can. Targets are then shares of the classes, which follow from the samples."""
        return self.drop_last and getattr(self.split, "mix", None) is not None

    def repeat(self) -> MicroBatches:
        """Return these micro-batches for every epoch: the same samples in the same order, augmented differently in each epoch."""
        return evolve(self, rows=self._visited()[: len(self) * self.whole], shuffle=False)

    @property
    def parts(self) -> Sequence[NDArray[np.intp]]:
        """This replica's samples of each micro-batch, counted from the iteration's first, in the split's own numbers."""
        visited = self._visited()
        starts = (position * self.whole + self.replica * self.batch for position in range(len(self)))
        return [visited[start : start + self.batch] for start in starts]

    @property
    def sizes(self) -> Sequence[int]:
        """Samples of each micro-batch; all are full, except the last one of an evaluation."""
        return list(map(len, self.parts))

    def _visited(self) -> NDArray[np.intp]:
        rows = np.arange(len(self.split)) if self.rows is None else self.rows
        return rows[order(len(rows), self.seed, self.epoch)] if self.shuffle else rows

    def __iter__(self) -> Generator[MicroBatch, None, None]:
        parts = self.parts[self.first :]
        if self.part == "nothing":
            return _unwrap(())
        targets = getattr(self.split, "fetch_targets", None)
        if self.part == "targets" and targets is not None and not self.mixes:
            return _unwrap((torch.empty(len(part), 0), targets(part)) for part in parts)
        if self.loaders is not None:
            return _unwrap(self.loaders.load(self.split, self.seed, self.epoch, parts, mixed=self.mixes))
        return _unwrap(fetch(self.split, self.seed, self.epoch, part, mixed=self.mixes) for part in parts)


def _unwrap(fetched: Iterable[MicroBatch | PetraGraphError]) -> Generator[MicroBatch, None, None]:
    for item in fetched:
        if isinstance(item, PetraGraphError):
            raise item
        yield item


def require_finite_samples(batches: MicroBatches, positions: Iterable[int]) -> None:
    """Check the samples of some micro-batches, whose loss is not finite: it may not be the network's fault.

    Args:
        batches: of an epoch, or an evaluation.
        positions: of micro-batches in it.

    Raises:
        RunFailed: the data set gave samples or targets that are not finite.
    """
    split = batches.split
    if not isinstance(split, CheckedSplit):
        return
    types = {dtype for part in (split.facts.inputs, split.facts.targets) for _, dtype in part.values()}
    if types & {"float32", "float64"}:
        parts = batches.parts
        for position in positions:
            split.require_finite(parts[position], seed=batches.seed, epoch=batches.epoch)


@frozen(kw_only=True)
class OpenedData:
    """What a run reads, and how long it is."""

    data: CheckedData
    batches: MicroBatches
    """Micro-batches of the first training epoch: the part that this process reads, of its own replica's rows."""
    evaluated: MicroBatches
    """Micro-batches of an evaluation after an epoch: every sample, or some that are spread over all, in order."""
    test: MicroBatches
    """Micro-batches of the test, likewise; those that are evaluated if there are no validation samples."""
    micro_batches: int
    """The number of micro-batches in an epoch over all training data."""
    horizon: Horizon

    @property
    def began_again(self) -> str:
        """A warning that the training stream has ended and began again; "" if it has not, or if samples have an index."""
        split = self.data.train.split
        count = split.first_pass if isinstance(split, StreamSplit) else None
        return "" if count is None else f"the training stream ended after {plural(count, 'sample')}, and began again"

    def epoch(self, number: int) -> MicroBatches:
        return evolve(self.batches, epoch=number)

    def read_in_part(self, part: Part, replica: int) -> OpenedData:
        """Return what one of several processes reads."""
        batches = evolve(self.batches, part=part, replica=replica)
        evaluated, test = (evolve(one, part=part) for one in (self.evaluated, self.test))
        return evolve(self, batches=batches, evaluated=evaluated, test=test)


def open_data(checked: CheckedSpec) -> OpenedData:
    """Open the data set of a run.

    Raises:
        SpecError: files are missing, there are no such validation samples, or too few training samples for a micro-batch.
        PluginError: the data set is broken.
    """
    spec = checked.spec
    built = checked.data.build()
    data = CheckedData.of(
        str(checked.data.plugin),
        built,
        validation=spec.data.validation,
        seed=spec.run.seed,
        training=split_of_stream(built, spec),
    )
    splits = [split for split in (data.train, data.validation, data.test) if split is not None]
    whole = spec.data.batch * spec.partition.replicas
    if spec.data.validation is not None and len(data.train) < whole:
        message = (
            f"the validation leaves {plural(len(data.train), 'training sample')}, and a micro-batch has {whole} of them"
        )
        hint = "give a smaller share, or lower data.batch"
        raise SpecError(Problem(message=message, hint=hint, path=("data", "validation")))
    batches = MicroBatches(
        split=data.train,
        batch=spec.data.batch,
        seed=spec.run.seed,
        epoch=0,
        loaders=Loaders(spec.data.workers, splits) if spec.data.workers else None,
        shuffle=not data.train.in_order,
        drop_last=True,
        replicas=spec.partition.replicas,
    )
    every, batches = len(batches), evolve(batches, limit=spec.run.micro_batches)
    if spec.run.overfit:
        batches = batches.repeat()

    def evaluation(split: CheckedSplit) -> MicroBatches:
        source = batches if spec.run.overfit else evolve(batches, split=split, drop_last=False)
        most = None if spec.run.evaluation_batches is None else spec.run.evaluation_batches * spec.data.test_batch
        rows = spread_rows(source.samples, most)
        return evolve(
            source,
            rows=rows if source.rows is None else source.rows[rows],
            of=source.samples,
            limit=None,
            batch=spec.data.test_batch,
            shuffle=False,
            drop_last=False,
            replicas=1,
        )

    return OpenedData(
        data=data,
        batches=batches,
        evaluated=evaluation(data.validation or data.test),
        test=evaluation(data.test),
        micro_batches=every,
        horizon=horizon(spec, len(batches)),
    )


# --- Processes that load micro-batches.
#
# Decision: a process is handed the indices of a whole micro-batch with its split, seed and epoch. So neither the number of processes
# nor their timing can change what is loaded or in which order, and the same processes serve all epochs and evaluations of a run.


_OF_TERMINALS = {signal.SIGINT, signal.SIGHUP}
_Request = tuple[int, int, int, bool, NDArray[np.intp]]
"""The number of a split, a seed, an epoch, whether the micro-batch is mixed, and its indices."""


class Loaders:
    """Loader processes, which start when they are first needed and live until they are closed.

    They iterate over one epoch or evaluation at a time: a new iteration abandons the one before.
    """

    def __init__(self, count: int, splits: Sequence[Split]) -> None:
        """Begin without processes; each will have all `splits` in its memory."""
        self._count = count
        self._splits = splits
        self._requests: list[_Request] = []
        self._loader: DataLoader[MicroBatch | PetraGraphError] | None = None
        self._processes: Any = None
        """The loader's iterator, one for all iterations."""

    def load(
        self, split: Split, seed: int, epoch: int, parts: Sequence[NDArray[np.intp]], *, mixed: bool
    ) -> Iterator[MicroBatch | PetraGraphError]:
        """Load parts of a split, each the indices of a micro-batch."""
        number = next(number for number, known in enumerate(self._splits) if known is split)
        self._requests[:] = [(number, seed, epoch, mixed, part) for part in parts]
        if self._loader is None:
            self._loader = DataLoader(
                _MicroBatches(self._splits),
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


def fetch(split: Split, seed: int, epoch: int, part: NDArray[np.intp], *, mixed: bool) -> MicroBatch | PetraGraphError:
    """Return a micro-batch, mixed by the split if it is to be, or the error of petra-graph that loading it raised.

    Such errors are values, since torch would rebuild an exception that leaves a loader process from a text with the process's
    traceback in it, and its problems would be lost.
    """
    mixing: Any = split
    try:
        fetched: MicroBatch = mixing.fetch(part, seed=seed, epoch=epoch)
        if mixed:
            fetched = mixing.mix(*fetched, part, seed=seed, epoch=epoch)
    except PetraGraphError as error:
        return error
    return fetched


class _MicroBatches(Dataset["MicroBatch | PetraGraphError"]):
    def __init__(self, splits: Sequence[Split]) -> None:
        self._splits = splits

    def __getitem__(self, request: _Request) -> MicroBatch | PetraGraphError:
        number, seed, epoch, mixed, part = request
        return fetch(self._splits[number], seed, epoch, part, mixed=mixed)


def _as_it_is(batch: Any) -> Any:
    return batch


def _begin(_: int) -> None:
    """Begin in a loader process.

    Ctrl-C and a closed terminal reach all its processes: the parent ends its workers itself, in good order.
    """
    for number in _OF_TERMINALS:
        signal.signal(number, signal.SIG_IGN)
    sys.excepthook = _report_unless_parent_left
    _reopen_files()


def _reopen_files() -> None:
    """Open again what is open for reading: forks share the position in a file, and would read what another one has sought."""
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
