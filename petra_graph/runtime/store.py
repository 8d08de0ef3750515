"""Where the processes of a run meet: what a launcher tells each of them, and a store of small values that they share.

Launchers differ in what a process sees of GPUs: torchrun and mpirun show every process all GPUs of its machine, `srun --gpus-per-task=1`
shows each one its own as number 0, and some set LOCAL_RANK and some do not. GPUs have identifiers that are unique in the
world, so each process takes the first GPU that it sees and that no process of a lower rank has taken: that is the right one in
all these cases.

Values in the store are JSON by name; bulk goes through channels. Torch's store asks nobody for a password: whoever reaches its port can
write to it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from petra_graph.errors import RunFailed, SpecError
from petra_graph.runtime.system import until

JOIN_SECONDS = "PETRA_GRAPH_JOIN_SECONDS"
"""The environment variable with the time within which all processes of a run must have come."""
_USUAL_JOIN_SECONDS = 60.0
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@frozen(kw_only=True)
class RankInfo:
    """This process among all of a run."""

    rank: int
    size: int
    address: str
    port: int
    hosted: bool
    """A launcher keeps the store; otherwise rank 0 does."""
    launch: str
    """Names what a launcher and all attempts that it starts have in the store."""
    attempt: str
    """Names where the processes of one attempt meet in the store."""
    restarts: int
    """How often a launcher has started the run again."""
    join_seconds: float
    """The time within which all processes must have come."""


def rank_info_from(environment: Mapping[str, str]) -> RankInfo | None:
    """Read torchrun's variables; return None if they are not set, or if the run has one process; SpecError: some are missing or no numbers."""
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    if missing := [name for name in _NEEDED if not environment.get(name)]:
        hint = f"start with torchrun or --processes, or set all of {', '.join(_NEEDED)}"
        raise SpecError(f"RANK and WORLD_SIZE are set, but not {', '.join(missing)}", hint)
    try:
        rank, size, port = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
        join_seconds = float(environment.get(JOIN_SECONDS) or _USUAL_JOIN_SECONDS)
    except ValueError as error:
        raise SpecError(f"RANK, WORLD_SIZE, MASTER_PORT and {JOIN_SECONDS} must be numbers: {error}") from None
    if not 0 <= rank < size:
        raise SpecError(f"RANK must lie in 0 .. WORLD_SIZE - 1 (got RANK = {rank}, WORLD_SIZE = {size})")
    if size == 1:
        return None
    names = ("RUN_ID", "RESTART_COUNT", "ERROR_FILE")
    run, restart, error_file = (environment.get(f"TORCHELASTIC_{name}", "") for name in names)
    return RankInfo(
        rank=rank,
        size=size,
        address=environment["MASTER_ADDR"],
        port=port,
        hosted=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        launch=launch_name(run, error_file),
        attempt=f"petra-graph/{run}/{restart}",
        restarts=int(restart) if restart.isdecimal() else 0,
        join_seconds=join_seconds,
    )


def launch_name(run: str, error_file: str = "") -> str:
    """Name what a launcher and its attempts have in the store."""
    # Torchrun gives all runs the same name, unless it is told one; the file is in a folder that each of its launches creates.
    return f"petra-graph/{run}/launch {error_file.rpartition('/attempt_')[0]}"


def machine_of_process() -> str:
    """Name the machine: equal where /proc/PID means the same process to both; empty where there is no /proc."""
    if sys.platform != "linux":
        return ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').stat().st_ino} {os.getuid()}"
    return ""


def visible_gpus() -> list[str]:
    """Return the identifiers of the GPUs that torch sees in this process, in its order."""
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]


def gpu_of(rank: int, visible: Sequence[Sequence[str]], hosts: Sequence[str]) -> int:
    """Return the index of a process's GPU among those that each sees, in the order of ranks; SpecError: lower ranks have taken all that it sees."""
    taken_by: dict[str, int] = {}
    for other, seen in enumerate(visible[: rank + 1]):
        free = next((gpu for gpu in seen if gpu not in taken_by), "")
        if other == rank and free:
            return seen.index(free)
        taken_by[free] = other
    own = visible[rank]
    users = ", ".join(f"rank {taken_by[gpu]}" for gpu in own)
    found = f"{len(own)} CUDA device(s), in use by {users}" if own else "no CUDA device"
    hint = 'start as many processes as devices, or set partition.devices = ["cpu"]'
    raise SpecError(f"rank {rank} on {hosts[rank]} sees {found}", hint)


# --- the store ----------------------------------------------------------------------------------------------------------

FINAL = "final"
"""The name of the exit code of a run that is not to be started again, among what its launcher finds."""
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
        """Take the part of torch's store that has this name."""
        self._store = store
        self._torch_store = PrefixStore(run, store)

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
        """Wait for a value that another process sets; RunFailed: none has in time.

        Processes may need any time, for their data or for a plan: the watchdog finds those that have died.

        Args:
            seconds: the longest that it may take, while this process is awake.
            otherwise: the message where it takes longer.
            check: called meanwhile; raises where another process has failed.
        """

        def look() -> tuple[Any] | None:
            if (value := self.get(name)) is None:
                try:
                    check()
                except Exception:
                    if (value := self.get(name)) is None:  # else it has come before the failure
                        raise
            return None if value is None else (value,)

        if (found := until(look, seconds)) is None:
            hint = "see whether all processes were started, and what they say"
            raise RunFailed(f"{otherwise or f'{name} has not come'} within {seconds:g} s", hint=hint)
        return found[0]


@contextmanager
def _answering() -> Iterator[None]:
    """Within the context, torch's store is asked; StoreGone: whatever torch raises where it does not answer."""
    try:
        yield
    except RuntimeError as error:
        raise StoreGone(str(error)) from error


def connect_store(rank_info: RankInfo, *, serves: bool) -> TCPStore:
    """Connect to torch's store of a run, or keep it; SpecError: its port cannot be reached, or another program uses it."""
    place = rank_info.address, rank_info.port
    try:
        if not serves:
            # Torch's own wait logs each try, and does not say why it failed.
            failures: list[OSError] = []

            def reached() -> bool:
                try:
                    socket.create_connection(place, timeout=1.0).close()
                except OSError as error:
                    failures[:] = [error]
                    time.sleep(_RETRY_SECONDS)  # each try may ask a name server
                    return False
                return True

            if not until(reached, rank_info.join_seconds):
                raise failures[-1]
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
    except (OSError, RuntimeError, ValueError) as error:
        does, hint = (
            "reach the run's store at",
            "MASTER_ADDR must be rank 0's host as seen from here, and MASTER_PORT open",
        )
        if serves:
            does = "listen on"
            hint = "another program uses this port: set MASTER_PORT (torchrun: --master-port) to a free one"
        where = f"{rank_info.address}:{rank_info.port}"
        raise SpecError(f"rank {rank_info.rank} cannot {does} {where}: {first_line(error)}", hint=hint) from error
    return store


def listen_here(port: int) -> socket.socket:
    """Return a socket that listens for processes of this machine alone; port 0: the system chooses; OSError: another program uses the port."""
    # The queue of connections that torch's store asks for; all ranks of a machine come at once.
    return socket.create_server((HERE[0], port), backlog=2048)


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
