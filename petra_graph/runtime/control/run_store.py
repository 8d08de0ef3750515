"""A store of small JSON values by name, which all processes of a run share; bulk goes through channels.

Decision: every value carries an HMAC over the run, the name and the value, keyed with the run's secret. Torch's store asks
nobody for a password, so whoever reaches its port can write to it; a value without the secret is as if it were not
there. A run has a part of the store to which each of its ranks has given a random number, so that what was signed in an
earlier run counts for nothing. Reading is open to everybody who reaches the port, and so is filling or breaking the store.
"""

from __future__ import annotations

import hmac
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from petra_graph.errors import Problem, RunFailed, SpecError
from petra_graph.runtime.control.rank_info import SECRET, RankInfo
from petra_graph.runtime.control.waiting import AwakeTime

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

    def __init__(self, store: Store, run: str, secret: str) -> None:
        """Take a part of torch's store.

        Args:
            store: holds this run's values, and perhaps others.
            run: its name, which sets its values apart from another run's in the same store.
            secret: known to the run's processes alone; "" signs with nothing.
        """
        self._store = store
        self._torch_store = PrefixStore(run, store)
        self._run = run
        self._secret = secret

    def within(self, name: str) -> RunStore:
        """Return a part of the store whose names are apart from all others."""
        return self.beside(f"{self._run}/{name}")

    def beside(self, run: str) -> RunStore:
        """Return what another run has in the same store."""
        return RunStore(self._store, run, self._secret)

    def set(self, name: str, value: Any) -> None:
        with _answering():
            self._torch_store.set(name, self._signed(name, value))

    def set_default(self, name: str, value: Any) -> Any:
        """Set a value unless it is set; return the one that holds."""
        with _answering():
            content = self._torch_store.compare_set(name, "", self._signed(name, value))
        holds = self._opened(name, content)
        return value if holds is None else holds

    def get(self, name: str) -> Any | None:
        """Return a value, None where there is none."""
        with _answering():
            content = self._torch_store.get(name) if self._torch_store.check([name]) else None
        return None if content is None else self._opened(name, content)

    def wait(self, name: str, seconds: float, otherwise: str) -> Any:
        """Wait for a value.

        Raises:
            RunFailed: `otherwise`, since no process has set the value in time, or the store has gone; or the value has another secret.
        """
        waits = AwakeTime()
        try:
            with _answering():
                while not self._torch_store.check([name]):
                    if waits.seconds > seconds:
                        message = f"{otherwise} within {seconds:g} s"
                        raise RunFailed(message, hint="see whether all processes were started, and what they say")
                    time.sleep(_LOOK_SECONDS)
                content = self._torch_store.get(name)
        except StoreGone as error:
            raise RunFailed(f"{otherwise}, and the run's store has gone", hint=STORE_ENDED) from error
        found = self._opened(name, content)
        if found is None:
            raise RunFailed(
                f"{name} in the run's store was not written with this process's {SECRET}",
                hint=f"set {SECRET} to the same text for all processes; or another program writes to the store",
            )
        return found

    def _signed(self, name: str, value: Any) -> str:
        text = json.dumps(value)
        return f"{self._signature(name, text)} {text}"

    def _opened(self, name: str, content: bytes) -> Any | None:
        signature, _, text = content.decode("utf-8", "replace").partition(" ")
        # compare_digest takes texts of ASCII characters alone.
        genuine = signature.isascii() and hmac.compare_digest(signature, self._signature(name, text))
        return json.loads(text) if genuine else None

    def _signature(self, name: str, text: str) -> str:
        message = json.dumps([self._run, name, text]).encode()
        return hmac.new(self._secret.encode(), message, "sha256").hexdigest()


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
