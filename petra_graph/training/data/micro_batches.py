"""An epoch of a data set as micro-batches.

Decision: the order is drawn whole from (seed, epoch), and a loader process is handed the indices of a whole micro-batch with
its split, seed and epoch. So neither the number of loader processes nor their timing can change what is loaded or in which
order, and the same processes serve all epochs and evaluations of a run.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from attrs import evolve, field, frozen
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from petra_graph.errors import Interrupted, PetraGraphError, Problem, RunFailed, SpecError
from petra_graph.kinds.checked_samples import CheckedSplit
from petra_graph.kinds.data_set import Split
from petra_graph.kinds.tensor_trees import Tree
from petra_graph.runtime.scheduler.stage_operations import MicroBatch
from petra_graph.units import plural

_END_SECONDS, _BROKEN_END_SECONDS = 0.5, 10.0
"""How long a process that has ended is waited for; and one whose connection broke, which a busy machine may take long to end."""
_OF_TERMINALS = {signal.SIGINT, signal.SIGHUP}
_WANT_OF_MEMORY = "probably for want of memory, or of room in /dev/shm: lower data.workers, or free some"
Part = Literal["all", "targets", "nothing"]
"""The part of a micro-batch that a process reads: the head needs targets alone, and does not read images."""


def order(n: int, seed: int, epoch: int) -> NDArray[np.intp]:
    """Return the order [n] in which an epoch visits the samples of a training split."""
    return np.random.default_rng([seed, epoch]).permutation(n)


@frozen(kw_only=True)
class MicroBatches:
    """Micro-batches of one epoch, the same at every iteration.

    Training takes `shuffle` and `drop_last` (shapes are static, so an incomplete micro-batch is left out); evaluation
    takes neither, and reads every sample in order.
    """

    split: Split
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
        if self.drop_last and len(self.split) < self.whole:
            message = (
                f"batch must be at most the {plural(len(self.split), 'sample')} of the training data (got {self.whole})"
            )
            hint = "training leaves out an epoch's last incomplete micro-batch, which would be all"
            raise SpecError(Problem(message=message, hint=hint, path=("data", "batch")))

    @property
    def whole(self) -> int:
        """Samples of a micro-batch, those of all replicas."""
        return self.batch * self.replicas

    def __len__(self) -> int:
        whole, rest = divmod(len(self.split), self.whole)
        all_of_them = whole + (rest > 0 and not self.drop_last)
        return all_of_them if self.limit is None else min(all_of_them, self.limit)

    def repeated(self) -> MicroBatches:
        """Return these micro-batches for every epoch: the same samples in the same order, augmented differently in each epoch."""
        rows = order(len(self.split), self.seed, self.epoch)[: len(self) * self.whole]
        return evolve(self, split=Rows(split=self.split, rows=rows), shuffle=False)

    def indices(self, position: int) -> NDArray[np.intp]:
        """Return the samples of one micro-batch, counted from the iteration's first, in the split's own numbers."""
        return self._parts[position]

    @property
    def _parts(self) -> Sequence[NDArray[np.intp]]:
        rows = order(len(self.split), self.seed, self.epoch) if self.shuffle else np.arange(len(self.split))
        return [rows[start : start + self.batch] for start in self._starts]

    @property
    def sizes(self) -> Sequence[int]:
        """Samples of each micro-batch; all are full, except the last one of an evaluation."""
        return [max(0, min(self.batch, len(self.split) - start)) for start in self._starts]

    @property
    def _starts(self) -> Sequence[int]:
        """The first row of this replica in each micro-batch."""
        return [position * self.whole + self.replica * self.batch for position in range(len(self))]

    def __iter__(self) -> Generator[MicroBatch, None, None]:
        parts = self._parts[self.first :]
        if self.part == "nothing":
            return _unwrapped(())
        targets = getattr(self.split, "fetch_targets", None)
        if self.part == "targets" and targets is not None:
            return _unwrapped((torch.empty(len(part), 0), targets(part)) for part in parts)
        if self.loaders is not None:
            return _unwrapped(self.loaders.fetched(self.split, self.seed, self.epoch, parts))
        return _unwrapped(_fetched(self.split, self.seed, self.epoch, part) for part in parts)


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

    def fetched(
        self, split: Split, seed: int, epoch: int, parts: Sequence[NDArray[np.intp]]
    ) -> Iterator[MicroBatch | PetraGraphError]:
        """Load parts of a split, each the indices of a micro-batch."""
        while not any(known is split for known in self._splits):
            assert isinstance(split, Rows)
            parts, split = [split.rows[part] for part in parts], split.split
        number = next(number for number, known in enumerate(self._splits) if known is split)
        self._requests[:] = [_Request(number, seed, epoch, part) for part in parts]
        if self._loader is None:
            self._loader = DataLoader(
                _Fetched(self._splits),
                batch_size=None,
                sampler=self._requests,  # read again by every iteration
                collate_fn=_as_it_is,
                num_workers=self._count,
                persistent_workers=True,
                worker_init_fn=_leave_interrupts_to_parent,
                generator=torch.Generator(),  # the default one would be advanced, and only where there are loaders
            )
        # Held back while processes start, as one that has not reached _leave_interrupts_to_parent dies with a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_TERMINALS)
        try:
            self._processes = found = iter(self._loader)
            return found
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Within the context, processes may load; they end with it, and where one was killed, the error says so."""
        try:
            yield
        except Interrupted:
            raise
        except Exception as error:
            broken = isinstance(error.__cause__ or error, ConnectionError | EOFError)
            if killed := self._killed(_BROKEN_END_SECONDS if broken else _END_SECONDS):
                hint = _WANT_OF_MEMORY if killed in {"SIGKILL", "SIGBUS"} else ""
                raise RunFailed(f"a process that loads data was killed by {killed}", hint=hint) from error
            raise
        finally:
            self.close()

    def _killed(self, seconds: float) -> str:
        """Return the signal by which a process was killed; "" where none was killed. Its connections may break before it has ended."""
        processes = [] if self._processes is None else self._processes._workers  # noqa: SLF001  known nowhere else
        wait([process.sentinel for process in processes], seconds)
        signals = (signal.Signals(-process.exitcode).name for process in processes if (process.exitcode or 0) < 0)
        return next(signals, "")

    def close(self) -> None:
        """End the processes, even while an iteration is still referenced: an error's traceback refers to the one that it ended."""
        if self._processes is not None:
            self._processes._shutdown_workers()  # noqa: SLF001  no public method ends them while the iterator is held
        self._loader = self._processes = None


@frozen(kw_only=True, eq=False)
class Rows:
    """Some rows of a split, as a split."""

    split: Split
    rows: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.rows)

    def fetch(self, indices: NDArray[np.intp], *, seed: int, epoch: int) -> MicroBatch:
        return self.split.fetch(self.rows[indices], seed=seed, epoch=epoch)

    @property
    def fetch_targets(self) -> Callable[[NDArray[np.intp]], Tree] | None:
        fetch = getattr(self.split, "fetch_targets", None)
        return None if fetch is None else lambda indices: fetch(self.rows[indices])


def spread_part(split: Split, batches: int | None, batch: int) -> Split:
    """Return the rows of a split that `batches` batches of an evaluation read, in their order; the split, if these are all.

    They are the same in every run, and drawn from the whole split, whose order may be that of classes.
    """
    if batches is None or batches * batch >= len(split):
        return split
    return Rows(split=split, rows=np.sort(np.random.default_rng(0).permutation(len(split))[: batches * batch]))


class _Request(NamedTuple):
    split: int
    seed: int
    epoch: int
    part: NDArray[np.intp]


class _Fetched(Dataset["MicroBatch | PetraGraphError"]):
    def __init__(self, splits: Sequence[Split]) -> None:
        self._splits = splits

    def __getitem__(self, request: _Request) -> MicroBatch | PetraGraphError:
        return _fetched(self._splits[request.split], request.seed, request.epoch, request.part)


def _fetched(split: Split, seed: int, epoch: int, part: NDArray[np.intp]) -> MicroBatch | PetraGraphError:
    """Return a micro-batch, or the error of petra-graph that loading it raised.

    Such errors are values, since torch would rebuild an exception that leaves a loader process from a text with the process's
    traceback in it, and its problems would be lost.
    """
    try:
        return split.fetch(part, seed=seed, epoch=epoch)
    except PetraGraphError as error:
        return error


def _unwrapped(fetched: Iterable[MicroBatch | PetraGraphError]) -> Generator[MicroBatch, None, None]:
    for item in fetched:
        if isinstance(item, PetraGraphError):
            raise item
        yield item


def _as_it_is(batch: Any) -> Any:
    return batch


def _leave_interrupts_to_parent(_: int) -> None:
    """Ignore Ctrl-C and a closed terminal, which reach all its processes: the parent ends its workers itself, in good order."""
    for number in _OF_TERMINALS:
        signal.signal(number, signal.SIG_IGN)
    sys.excepthook = _unless_parent_left


def _unless_parent_left(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    """Report nothing where the parent was interrupted while it took a tensor from the thread that hands tensors over."""
    if not issubclass(kind, ConnectionError | EOFError):
        sys.__excepthook__(kind, value, trace)


def require_finite_samples(batches: MicroBatches, positions: Iterable[int]) -> None:
    """Check the samples of some micro-batches, whose loss is not finite: it may not be the network's fault.

    Args:
        batches: of an epoch, or an evaluation.
        positions: of micro-batches in it.

    Raises:
        RunFailed: the data set gave samples or targets that are not finite.
    """
    for position in positions:
        split: Any = batches.split
        indices = batches.indices(position)
        while isinstance(split, Rows):
            indices, split = split.rows[indices], split.split
        if not isinstance(split, CheckedSplit):
            return
        types = {split.facts.dtype, *(dtype for _, dtype in split.facts.targets.values())}
        if not types & {"float32", "float64"}:
            return
        split.require_finite(indices, seed=batches.seed, epoch=batches.epoch)
