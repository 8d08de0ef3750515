"""Processes that load micro-batches.

Decision: a process is handed the indices of a whole micro-batch with its split, seed and epoch. So neither the number of processes
nor their timing can change what is loaded or in which order, and the same processes serve all epochs and evaluations of a run.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch.utils.data import DataLoader, Dataset

from petra_graph.errors import PetraGraphError
from petra_graph.runtime.stage_io import MicroBatch

_Request = tuple[int, Any, Mapping[str, Any]]
"""The number of a split, the indices of a micro-batch, and the other arguments of `fetch`."""


class Loaders:
    """Loader processes, which start when they are first needed and live until they are closed; a new iteration abandons the one before."""

    def __init__(self, count: int, splits: Sequence[Any]) -> None:
        """Begin without processes; each will have all `splits` in its memory."""
        self._count, self._splits = count, list(splits)
        self._requests: list[_Request] = []
        self._loader: DataLoader[MicroBatch | PetraGraphError] | None = None
        self._processes: Any = None
        """The loader's iterator, one for all iterations."""

    def load(self, split: Any, parts: Sequence[Any], how: Mapping[str, Any]) -> Iterator[MicroBatch]:
        """Load parts of a split, each the indices of a micro-batch; `how` are the arguments of its `fetch`, whose errors are raised."""
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
