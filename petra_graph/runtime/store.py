"""A store of small JSON values by name, which all processes of a run share; bulk goes through channels.

Torch's store asks nobody for a password: whoever reaches its port can write to it.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from math import inf
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from petra_graph.errors import Problem, RunFailed, SpecError
from petra_graph.runtime.rank_info import RankInfo
from petra_graph.runtime.waiting import AwakeTime

_LOOK_SECONDS = 0.005
COMPLETE = "complete"
"""The name of the exit code of a run that has written everything, among what its launcher finds."""
STORE_ENDED = "its launcher has ended, or rank 0 if no launcher started it"
HERE = ("127.0.0.1", "localhost")
"""Addresses that only this machine's processes reach."""
_RETRY_SECONDS = 0.1
_STORE_ANSWERS = timedelta(days=20)
"""Within which the store answers; torch counts the time in which this process is suspended, and cannot count a month."""


class StoreGone(RuntimeError):
    """The store does not answer: whoever kept it has ended."""


class RunStore:
    """JSON values by name."""

    def __init__(self, store: Store, run: str) -> None:
        """Take a part of torch's store.

        Args:
            store: holds this run's values, and perhaps others.
            run: its name, which sets its values apart from another run's in the same store.
        """
        self._store = store
        self._torch_store = PrefixStore(run, store)
        self._run = run

    def within(self, name: str) -> RunStore:
        """Return a part of the store whose names are apart from all others."""
        return self.beside(f"{self._run}/{name}")

    def beside(self, run: str) -> RunStore:
        """Return what another run has in the same store."""
        return RunStore(self._store, run)

    def set(self, name: str, value: Any) -> None:
        with _answering():
            self._torch_store.set(name, json.dumps(value))

    def set_default(self, name: str, value: Any) -> Any:
        """Set a value unless it is set; return the one that holds."""
        with _answering():
            return json.loads(self._torch_store.compare_set(name, "", json.dumps(value)))

    def get(self, name: str) -> Any | None:
        """Return a value, None where there is none."""
        with _answering():
            content = self._torch_store.get(name) if self._torch_store.check([name]) else None
        return None if content is None else json.loads(content)

    def wait(
        self, name: str, seconds: float = inf, otherwise: str = "", check: Callable[[], object] = lambda: None
    ) -> Any:
        """Wait for a value that another process sets.

        Processes may need any time, for their data or for a plan: the watchdog finds those that have died.

        Args:
            seconds: the longest that it may take, while this process is awake.
            otherwise: the message where it takes longer.
            check: called meanwhile; raises where another process has failed.

        Raises:
            RunFailed: no process has set the value in time.
        """
        waits, failed = AwakeTime(), None
        while (value := self.get(name)) is None:
            if failed is not None:
                raise failed
            if waits.seconds > seconds:
                hint = "see whether all processes were started, and what they say"
                raise RunFailed(f"{otherwise or f'{name} has not come'} within {seconds:g} s", hint=hint)
            time.sleep(_LOOK_SECONDS)
            try:
                check()
            except Exception as error:  # noqa: BLE001  raised after one more look: the value may have come before the failure
                failed = error
        return value


@contextmanager
def _answering() -> Iterator[None]:
    """Within the context, torch's store is asked.

    Raises:
        StoreGone: whatever torch raises where it does not answer.
    """
    try:
        yield
    except RuntimeError as error:
        raise StoreGone(str(error)) from error


def connect_store(rank_info: RankInfo, *, serves: bool) -> TCPStore:
    """Connect to torch's store of a run, or keep it.

    Raises:
        SpecError: its port cannot be reached, or another program uses it.
    """
    try:
        if not serves:
            _wait_for_port(rank_info)
        listening = listen_here(rank_info.port) if serves and rank_info.address in HERE else None
        store = TCPStore(
            rank_info.address,
            rank_info.port,
            is_master=serves,
            timeout=timedelta(seconds=rank_info.join_seconds),
            wait_for_workers=False,
            master_listen_fd=None if listening is None else listening.detach(),
        )
        store.set_timeout(_STORE_ANSWERS)
    except (OSError, dist.DistNetworkError, RuntimeError, ValueError) as error:
        where = f"{rank_info.address}:{rank_info.port}"
        if serves:
            problem = Problem(
                message=f"rank 0 cannot listen on {where}: {first_line(error)}",
                hint="another program uses this port: set MASTER_PORT (torchrun: --master-port) to a free one",
            )
        else:
            problem = Problem(
                message=f"rank {rank_info.rank} cannot reach the run's store at {where}: {first_line(error)}",
                hint="MASTER_ADDR must be rank 0's host as seen from here, and MASTER_PORT open",
            )
        raise SpecError(problem) from error
    return store


def _wait_for_port(rank_info: RankInfo) -> None:
    """Return when a process listens where the store should be: torch's own wait takes longer, and does not say why.

    Raises:
        OSError: nobody does within the time to join.
    """
    waits = AwakeTime()
    while True:
        left = rank_info.join_seconds - waits.seconds
        try:
            socket.create_connection((rank_info.address, rank_info.port), timeout=max(_LOOK_SECONDS, left)).close()
        except OSError:
            if waits.seconds + _RETRY_SECONDS > rank_info.join_seconds:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def listen_here(port: int) -> socket.socket:
    """Return a socket that listens for processes of this machine alone; port 0: the system chooses.

    Raises:
        OSError: another program uses the port.
    """
    # The queue of connections that torch's store asks for; all ranks of a machine come at once.
    return socket.create_server((HERE[0], port), backlog=2048)


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
