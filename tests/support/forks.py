"""Processes of `petra-graph run` that start in no time: forks of one that has imported everything.

They are real processes, as torchrun would start them, which can be killed and can fail on their own.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from attrs import frozen
from torch._C._distributed_c10d import TCPStore

from tests.support import ROOT

PATIENCE_SECONDS = 90.0
SPEC = """\
name = "shared"

[[graph.node]]
name = "stem"
block = "linear-stem"
options = { features = 12 }

[[graph.node]]
name = "near"
block = "rev-mlp"
options = { hidden = 12 }

[[graph.node]]
name = "far"
block = "rev-mlp"
options = { hidden = 12 }

[[graph.node]]
name = "head"
block = "pool-linear"
options = { outputs = 5 }

[method]
schedule = "1f1b"

[optimizer]
options = { lr = 0.01 }

[data]
name = "random"
batch = 8
options = { shape = [6], dtype = "float32", classes = 5, train = 64, test = 16 }

[run]
epochs = 2
log_every = 4
"""
ENDLESS = SPEC.replace("epochs = 2", "epochs = 1000000")
RUN = ("run", "shared.toml")
_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.support.preloaded"])


@frozen(kw_only=True)
class Rank:
    """One process of a run."""

    process: ForkServerProcess
    output: Path

    @property
    def said(self) -> str:
        return self.output.read_text()

    @property
    def code(self) -> int | None:
        return self.process.exitcode

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)


@contextlib.contextmanager
def ranks(
    *arguments: Sequence[str],
    port: int | None = None,
    hosted: bool = True,
    file_bytes: Mapping[int, int] | None = None,
    folders: Sequence[str] = (),
    **environment: str,
) -> Iterator[list[Rank]]:
    """Start one process for each list of arguments of the command line, in the current folder.

    Args:
        port: where the store is; None: a free one.
        hosted: whether the store is kept here, as a launcher does; else rank 0 keeps it.
        file_bytes: the largest file that the system lets a rank write.
        folders: of each rank, in place of the current one.
        environment: beside torchrun's variables.
    """
    # pytest's own process keeps it, as a fork of it would inherit its threads' locks: these here come from elsewhere.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if hosted else None
    port = store.port if store else port or free_port()
    running = []
    for rank, words in enumerate(arguments):
        output = Path.cwd() / f"rank{rank}.txt"
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(arguments)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": str(hosted),
            **environment,
        }
        most, folder = (file_bytes or {}).get(rank), str(Path(folders[rank] if folders else "").absolute())
        process = _FORKS.Process(target=_run, args=(list(words), folder, variables, str(output), most))
        process.start()
        running.append(Rank(process=process, output=output))
    try:
        yield running
    finally:
        for one in running:
            one.process.kill()
            one.process.join()


@contextlib.contextmanager
def alone(*words: str) -> Iterator[Rank]:
    """Start one process of the command line that belongs to no run, in the current folder."""
    output = Path.cwd() / "alone.txt"
    process = _FORKS.Process(target=_run, args=(list(words), str(Path.cwd()), {}, str(output), None))
    process.start()
    try:
        yield Rank(process=process, output=output)
    finally:
        process.kill()
        process.join()


def children(pid: int) -> list[int]:
    """Processes that a process has started, and that have not ended."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(status.parent.name))
    return sorted(found)


def start_server() -> None:
    """Start what forks, in a folder of its own: it stays there."""
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        forkserver.ensure_running()
    finally:
        os.chdir(before)


def _run(words: list[str], folder: str, variables: dict[str, str], output: str, most: int | None) -> None:
    """Be one process of a run."""
    os.setsid()
    os.chdir(folder)
    os.environ.update(variables)
    sys.path.insert(0, folder)
    with Path(output).open("w") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", buffering=1, closefd=False)
    if most is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    from petra_graph.cli.main import main

    code = main(words)
    sys.stdout.flush()
    os._exit(code)


def ended(running: Sequence[Rank], seconds: float = PATIENCE_SECONDS) -> list[int]:
    """Wait for all, and return their exit codes."""
    end = time.monotonic() + seconds
    for rank in running:
        rank.process.join(max(0.1, end - time.monotonic()))
    codes = [code for rank in running if (code := rank.code) is not None]
    assert len(codes) == len(running), "\n".join(rank.said for rank in running)
    return codes


def until(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def at_work_in(folder: Path) -> list[str]:
    """Commands of processes whose current folder it is, this one left out."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(process.name) != os.getpid() and (process / "cwd").readlink() == folder:
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def wait_for_progress(lines: int = 20) -> None:
    """Wait until the runs in the current folder have written some events more."""

    def seen() -> int:
        return sum(path.read_bytes().count(b"\n") for path in Path("runs").glob("*/metrics.jsonl"))

    before = seen()
    until(lambda: seen() > before + lines)


def under_way() -> bool:
    """Whether an epoch has ended of the run in the current folder."""
    return any('"train/loss"' in path.read_text() for path in Path("runs").glob("*/metrics.jsonl"))
