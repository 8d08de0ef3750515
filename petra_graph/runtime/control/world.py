"""The processes of one run, and the small store that they tell one another.

torchrun's environment variables say who is who; store go through the store that it keeps, as JSON. Bulk goes elsewhere.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist
from attrs import frozen
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from petra_graph.errors import Problem, RunFailed, SpecError

_JOIN_SECONDS = 300.0
_PART_SECONDS = 5.0
_LOOK_SECONDS = 0.02
NEVER = timedelta(days=365)
"""Waits on channels have no limit of their own: the watchdog knows better."""
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@frozen(kw_only=True)
class RankInfo:
    """This process among all of the run."""

    rank: int
    size: int
    local_rank: int
    address: str
    port: int
    hosted: bool
    """A launcher keeps the store; else rank 0 does."""
    attempt: str
    """Sets this run's store apart from another's in the same store."""


def rank_info_from(environment: Mapping[str, str]) -> RankInfo | None:
    """Read torchrun's variables; None where there are none, or one process is all.

    Raises:
        SpecError: some are missing or no numbers.
    """
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    missing = [name for name in _NEEDED if not environment.get(name)]
    if missing:
        raise SpecError(
            f"RANK and WORLD_SIZE are set, but not {', '.join(missing)}",
            hint="start with torchrun or --processes, or set all of " + ", ".join(_NEEDED),
        )
    try:
        size = int(environment["WORLD_SIZE"])
        rank, port = int(environment["RANK"]), int(environment["MASTER_PORT"])
        local_rank = int(environment.get("LOCAL_RANK", "0"))
    except ValueError as error:
        raise SpecError(f"RANK, WORLD_SIZE, LOCAL_RANK and MASTER_PORT must be numbers: {error}") from None
    if not 0 <= rank < size:
        raise SpecError(f"RANK must lie in 0 .. WORLD_SIZE - 1 (got RANK = {rank}, WORLD_SIZE = {size})")
    if size == 1:
        return None
    run, restart = (environment.get(f"TORCHELASTIC_{name}", "") for name in ("RUN_ID", "RESTART_COUNT"))
    return RankInfo(
        rank=rank,
        size=size,
        local_rank=local_rank,
        address=environment["MASTER_ADDR"],
        port=port,
        hosted=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=attempt_name(run, restart),
    )


def attempt_name(run: str, restart: str) -> str:
    """Name a run's store in its store."""
    return f"petra-graph/{run}/{restart}"


@frozen(kw_only=True)
class ProcessInfo:
    """What others know of a process."""

    rank: int
    process: int
    host: str
    machine: str
    """Equal for two processes that can share memory: the same boot, and the same numbering of processes."""


class World:
    """All processes of a run, as one of them sees them."""

    def __init__(self, rank_info: RankInfo) -> None:
        self.rank_info = rank_info
        self._server = _store(rank_info, serves=rank_info.rank == 0 and not rank_info.hosted)
        self.store = RunStore(PrefixStore(rank_info.attempt, self._server))
        self.neighbours: tuple[ProcessInfo, ...] = ()

    @property
    def rank(self) -> int:
        """This process."""
        return self.rank_info.rank

    @property
    def size(self) -> int:
        """How many there are."""
        return self.rank_info.size

    @property
    def own(self) -> ProcessInfo:
        """This process as others know it."""
        return self.neighbours[self.rank]

    def another_connection(self) -> RunStore:
        """Return the same store for another thread: one that waits does not hold up the other."""
        return RunStore(PrefixStore(self.rank_info.attempt, _store(self.rank_info, serves=False)))

    def rendezvous(self) -> None:
        """Wait for all processes, and learn who they are.

        Raises:
            RunFailed: some have not come in time.
        """
        own = {"process": os.getpid(), "host": socket.gethostname(), "machine": _machine()}
        self.store.set(f"process/{self.rank}", own)
        found = [
            self.store.wait(f"process/{rank}", _JOIN_SECONDS, f"rank {rank} has not come") for rank in range(self.size)
        ]
        self.neighbours = tuple(ProcessInfo(rank=rank, **told) for rank, told in enumerate(found))

    def share_machine(self, rank: int) -> bool:
        """Whether memory can be shared with a process."""
        return bool(self.own.machine) and self.neighbours[rank].machine == self.own.machine

    def connect(self) -> None:
        """Build the process group that channels between machines, and a few collectives, go through."""
        store = PrefixStore(f"{self.rank_info.attempt}/gloo", self._server)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size, timeout=NEVER)

    def wait_for_all(self, where: str, seconds: float = _JOIN_SECONDS) -> None:
        """Return when every process has come to this place.

        Raises:
            RunFailed: some have not come in time.
        """
        if self.store.add(f"arrived/{where}") == self.size:
            self.store.set(f"all/{where}", True)
        self.store.wait(f"all/{where}", seconds, f"not all ranks have come to the end of: {where}")

    def shutdown(self, store: RunStore, missing: int = 0, seconds: float = _PART_SECONDS) -> None:
        """Say good-bye; the process that keeps the store, where no launcher does, goes last.

        Args:
            store: a connection that no other thread may be waiting on; nothing is asked through it afterwards.
            missing: processes that have gone without a word.
            seconds: how long to wait for the others.
        """
        if self.rank_info.hosted:
            return
        with suppress(dist.DistError, RuntimeError):
            if self.rank != 0:
                store.add("left")
                return
            end = time.monotonic() + seconds
            while (store.get("left") or 0) < self.size - 1 - missing and time.monotonic() < end:
                time.sleep(_LOOK_SECONDS)


class RunStore:
    """A store of JSON values by name, which all processes see."""

    def __init__(self, store: Store) -> None:
        self._torch_store = store

    def within(self, name: str) -> RunStore:
        """Return store of the same store that are apart from all others."""
        return RunStore(PrefixStore(name, self._torch_store))

    def set(self, name: str, value: Any) -> None:
        """Say something."""
        self._torch_store.set(name, json.dumps(value))

    def set_default(self, name: str, value: Any) -> Any:
        """Say something unless somebody said it before; return what holds."""
        return json.loads(self._torch_store.compare_set(name, "", json.dumps(value)))

    def get(self, name: str) -> Any | None:
        """Return what was said, None if nothing."""
        return json.loads(self._torch_store.get(name)) if self._torch_store.check([name]) else None

    def wait(self, name: str, seconds: float, otherwise: str) -> Any:
        """Wait for something to be said.

        Raises:
            RunFailed: `otherwise`, as nobody said it in time.
        """
        try:
            self._torch_store.wait([name], timedelta(seconds=seconds))
        except (dist.DistStoreError, dist.DistNetworkError) as error:
            message = f"{otherwise} within {seconds:g} s"
            raise RunFailed(message, hint="see whether all processes were started, and what they say") from error
        return json.loads(self._torch_store.get(name))

    def add(self, name: str) -> int:
        """Count up from 1."""
        return int(self._torch_store.add(name, 1))


def _store(rank_info: RankInfo, *, serves: bool) -> TCPStore:
    try:
        return TCPStore(
            rank_info.address,
            rank_info.port,
            is_master=serves,
            timeout=timedelta(seconds=_JOIN_SECONDS),
            wait_for_workers=False,
        )
    except (dist.DistNetworkError, RuntimeError, ValueError) as error:
        where = f"{rank_info.address}:{rank_info.port}"
        if serves:
            problem = Problem(
                message=f"rank 0 cannot listen on {where}: {_first_line(error)}",
                hint="another program uses this port: set MASTER_PORT (torchrun: --master-port) to a free one",
            )
        else:
            problem = Problem(
                message=f"rank {rank_info.rank} cannot reach the run's store at {where}: {_first_line(error)}",
                hint="MASTER_ADDR must be rank 0's host as seen from here, and MASTER_PORT open",
            )
        raise SpecError(problem) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _machine() -> str:
    """Name what must be equal for /proc/PID of one process to mean the same to another; empty where there is no /proc."""
    if sys.platform != "linux":
        return ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').stat().st_ino} {os.getuid()}"
    return ""


def hard_exit(code: int) -> NoReturn:
    """End this process now: threads that wait for others, who may be gone, hold up nothing."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
