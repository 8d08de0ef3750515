"""Processes that load micro-batches.

Decision: a process is handed the indices of a whole micro-batch with its split, seed and epoch. So neither the number of processes
nor their timing can change what is loaded or in which order, and the same processes serve all epochs and evaluations of a run.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from petra_graph.errors import Interrupted, PetraGraphError, RunFailed
from petra_graph.plugins.data_set import Split
from petra_graph.runtime.scheduler.stage_operations import MicroBatch

_END_SECONDS, _BROKEN_END_SECONDS = 0.5, 10.0
"""How long a process that has ended is waited for; and one whose connection broke, which a busy machine may take long to end."""
_OF_TERMINALS = {signal.SIGINT, signal.SIGHUP}
_WANT_OF_MEMORY = "probably for want of memory, or of room in /dev/shm: lower data.workers, or free some"
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
                worker_init_fn=_leave_interrupts_to_parent,
                generator=torch.Generator(),  # the default one would be advanced, and only if there are loaders
            )
        # Held back while processes start, as one that has not reached _leave_interrupts_to_parent dies with a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_TERMINALS)
        try:
            self._processes = loaded = iter(self._loader)
            return loaded
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Within the context, processes may load; they end with it, and if one was killed, the error says so."""
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
        """Return the signal by which a process was killed; "" if none was killed. Its connections may break before it has ended."""
        processes = [] if self._processes is None else self._processes._workers  # noqa: SLF001  known nowhere else
        wait([process.sentinel for process in processes], seconds)
        signals = (signal.Signals(-process.exitcode).name for process in processes if (process.exitcode or 0) < 0)
        return next(signals, "")

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


def _leave_interrupts_to_parent(_: int) -> None:
    """Ignore Ctrl-C and a closed terminal, which reach all its processes: the parent ends its workers itself, in good order."""
    for number in _OF_TERMINALS:
        signal.signal(number, signal.SIG_IGN)
    sys.excepthook = _report_unless_parent_left


def _report_unless_parent_left(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    """Report nothing if the parent was interrupted while it took a tensor from the thread that hands tensors over."""
    if not issubclass(kind, ConnectionError | EOFError):
        sys.__excepthook__(kind, value, trace)
