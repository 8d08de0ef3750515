"""All processes of a run: their rendezvous at the store, and their shutdown."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from hashlib import sha256
from secrets import token_hex
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from attrs import asdict, frozen
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from petra_graph.errors import Problem, RunFailed, SpecError
from petra_graph.runtime.store import (
    HERE,
    STORE_ENDED,
    RankInfo,
    RunStore,
    StoreGone,
    connect_store,
    machine_of_process,
)
from petra_graph.runtime.system import AwakeTime, until

_PART_SECONDS = 5.0
_LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
"""The network interface of these addresses, on which gloo listens then."""
_GATHERED = 1 << 20
"""The tag of gathered tensors, far above those of channels."""
NEVER = timedelta(days=365)
"""Waits on channels are not limited by themselves: the watchdog decides."""


@frozen
class ProcessInfo:
    """What other processes know of one."""

    process: int
    host: str
    machine: str
    """Equal for two processes that can share memory: the same boot, and the same numbering of processes."""
    size: int
    """The number of processes that it was told."""
    drawn: str
    """Its random number."""


class World:
    """All processes of a run, as one of them sees them."""

    def __init__(self, rank_info: RankInfo) -> None:
        self.rank_info, self.rank, self.size = rank_info, rank_info.rank, rank_info.size
        self._server = connect_store(rank_info, serves=rank_info.rank == 0 and not rank_info.hosted)
        self._part = rank_info.attempt
        self.store = RunStore(self._server, self._part)
        """Of this run alone, once its processes have met."""
        self.launch = self.store.beside(rank_info.launch)
        """What the launcher finds there, and a run that it starts again."""
        self.neighbours: Sequence[ProcessInfo] = ()
        """All processes, by rank, once they have met."""
        self.check: Callable[[], object] = lambda: None
        """Called while this process waits for others; raises where one of them has failed."""
        self._groups: list[dist.ProcessGroup] = []

    def another_connection(self) -> RunStore:
        """Return another connection to the store, for a thread whose waits must not hold up this one."""
        return RunStore(connect_store(self.rank_info, serves=False), self._part)

    def rendezvous(self) -> None:
        """Wait for all processes, read where each one runs, and take the part of the store that is of this run alone.

        RunFailed: some have not come in time; SpecError: another process has this one's rank, or another WORLD_SIZE.
        """
        own = ProcessInfo(os.getpid(), socket.gethostname(), machine_of_process(), self.size, token_hex())
        first = ProcessInfo(**self.store.set_default(f"process/{self.rank}", asdict(own)))
        if first != own:
            both = f"{first.process} on {first.host} and {own.process} on {own.host}"
            hint = "give every process a RANK of its own, and every run a store of its own"
            raise SpecError(f"two processes have rank {self.rank}: {both}", hint=hint)
        waits, found = AwakeTime(), list[ProcessInfo]()
        where = f"rank {self.rank} waits at {self.rank_info.address}:{self.rank_info.port}"
        for rank in range(self.size):
            missing = f"{where}, and rank {rank} has not come"
            left = max(0.0, self.rank_info.join_seconds - waits.seconds)
            try:
                found.append(known := ProcessInfo(**self.store.wait(f"process/{rank}", left, missing)))
            except StoreGone as error:
                raise RunFailed(f"{missing}, and the run's store has gone", hint=STORE_ENDED) from error
            if known.size != self.size:
                message = f"rank {self.rank} is to be one of {self.size} processes, and rank {rank} one of {known.size}"
                raise SpecError(message, hint="give every process of a run the same WORLD_SIZE")
        self.neighbours = found
        # Whoever has strayed into this store from another run has met others, and is in another part of it.
        self._part += "/" + sha256("".join(known.drawn for known in found).encode()).hexdigest()
        self.store = RunStore(self._server, self._part)

    def share_machine(self, rank: int) -> bool:
        """Whether this process can share memory with another one."""
        own = self.neighbours[self.rank].machine
        return bool(own) and self.neighbours[rank].machine == own

    def connect(self) -> None:
        """Build the process group, for channels between machines and a few collectives."""
        if self.rank_info.address in HERE:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK)
        store = PrefixStore(f"{self.rank_info.attempt}/gloo", self._server)
        with self._connecting():
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size, timeout=NEVER)

    def group(self, ranks: Collection[int], device: str) -> dist.ProcessGroup | None:
        """Build a process group of some ranks for tensors of a type of device; None in other processes.

        All processes call this for all groups, in the same order: torch counts the groups to name them.
        """
        if device == "cuda" and not dist.is_nccl_available():
            message, hint = "torch has no NCCL here", 'install a build of torch with NCCL, or set transport = "auto"'
            raise SpecError(Problem(message=message, hint=hint, path=("run", "transport")))
        # Else torch ends this process when another one has died, before the watchdog can say which; torchrun asks for that.
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
        with self._connecting():
            group = dist.new_group(list(ranks), NEVER, "nccl" if device == "cuda" else "gloo")
        if not isinstance(group, dist.ProcessGroup):
            return None
        self._groups.append(group)
        return group

    @contextmanager
    def _connecting(self) -> Iterator[None]:
        """Within the context, torch connects the processes; RunFailed: it cannot, and all are alive. Of one that has died, the watchdog raises it."""
        # Torch 2.8's gloo says on stdout how many ranks it has connected, before `--json`'s document.
        sys.stdout.flush()
        kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        try:
            yield
        except RuntimeError as error:
            until(self.check, _PART_SECONDS)
            hint = "see what the other processes say; between machines, their ports must be open to each other"
            raise RunFailed("cannot connect with the other processes", hint=hint) from error
        finally:
            os.dup2(kept, 1)
            os.close(kept)
            os.close(nowhere)

    def abort_groups(self) -> None:
        """End what groups still send and receive, without waiting for it.

        All at once: aborting one of NCCL's may wait for its whole device, and so for another one's message
        (https://github.com/pytorch/pytorch/issues/119797). What has not ended within some seconds ends with the process.
        """

        def abort(group: dist.ProcessGroup) -> None:
            with suppress(RuntimeError):  # there is nothing left to end
                group.abort()

        groups, self._groups = self._groups, []
        threads = [Thread(target=abort, args=(group,), daemon=True) for group in groups]
        for thread in threads:
            thread.start()
        until(lambda: not any(thread.is_alive() for thread in threads), _PART_SECONDS)

    def wait(self, name: str) -> Any:
        """Return a value that another process sets, however long it takes."""
        return self.store.wait(name, check=self.check)

    def wait_for_all(self, where: str) -> None:
        """Return when every process has come to this point."""
        self.store.set(f"arrived/{where}/{self.rank}", True)
        for rank in range(self.size):
            self.wait(f"arrived/{where}/{rank}")

    def gather(self, name: str, own: Mapping[str, Tensor], ranks: Sequence[int]) -> Mapping[str, Tensor]:
        """Return the tensors of a pipeline in the last stage's process, this process's own elsewhere.

        Args:
            name: of what is gathered, once in a run.
            own: tensors of this process's stages by name, on the CPU and densely laid out.
            ranks: the process of each stage, in order; a process that hosts none of them keeps its own tensors.
        """
        found, target = dict(own), ranks[-1]
        if self.rank == target:
            for rank in dict.fromkeys(ranks[:-1]):
                for key, shape, dtype in self.wait(f"{name}/{rank}") if rank != target else ():
                    found[key] = torch.empty(shape, dtype=getattr(torch, dtype))
                    dist.recv(_bytes(found[key]), rank, tag=_GATHERED)
        elif self.rank in ranks:
            kinds = [(key, list(one.shape), str(one.dtype).removeprefix("torch.")) for key, one in own.items()]
            self.store.set(f"{name}/{self.rank}", kinds)
            for value in own.values():
                dist.send(_bytes(value), target, tag=_GATHERED)
        return found

    def shutdown(self, store: RunStore, missing: int = 0) -> None:
        """Leave the run; the process that keeps the store, where no launcher does, leaves last, but for processes that have died.

        No other thread waits on this connection, which is not used afterwards.
        """
        if self.rank_info.hosted:
            return
        with suppress(StoreGone):
            if self.rank != 0:
                store.set(f"left/{self.rank}", True)
                return
            left = [f"left/{rank}" for rank in range(1, self.size)]
            until(lambda: sum(map(bool, map(store.get, left))) >= len(left) - missing, _PART_SECONDS)


def _bytes(value: Tensor) -> Tensor:
    return value.detach().reshape(-1).view(torch.uint8)
