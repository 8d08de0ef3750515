"""Processes of `petra-graph run` that start in no time: forks of one that has imported everything.

They are real processes, as torchrun would start them, which can be killed and can fail on their own.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import forkserver, get_context, set_start_method
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from pkgutil import resolve_name
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from attrs import frozen
from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from petra_graph.cli.main import main
from petra_graph.runtime import watchdog
from petra_graph.training.processes import end, launch
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
_NETWORK = 0x40000000
"""CLONE_NEWNET, of setns(2): `os` has it from Python 3.12 on."""
_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.support.preloaded"])


PROGRAMS = {
    "petra-graph": "petra_graph.cli.main:main",
    "patient petra-graph": "tests.support.forks:patient",
    "pytest": "pytest:main",
    "python -c": "tests.support.forks:run_code",
}
"""The functions of programs; another program is the location of its own: it is called with the words."""


@frozen(kw_only=True)
class _Fork:
    """What a fork is told: words for a program, and what it begins with."""

    words: Sequence[str]
    folder: str
    outputs: tuple[str, str]
    """Files for both streams."""
    variables: Mapping[str, str] = {}
    """Of the environment."""
    paths: Sequence[str] = ()
    """Folders before all others of Python's path."""
    most: int | None = None
    """The size of the largest file that it can write."""
    program: str = "petra-graph"
    ranks_fork: bool = False
    """Whether the ranks that it launches are forks of it."""
    network: str | None = None
    """The name of a network of its own."""

    def begin(self) -> ForkServerProcess:
        process = _FORKS.Process(target=_run, args=(self,))
        process.start()
        return process


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
    paths: Sequence[Path] = (),
    program: str = "petra-graph",
    **environment: str,
) -> Iterator[list[Rank]]:
    """Start one process for each list of arguments of the command line, in the current folder.

    Args:
        port: where the store is; None: a free one.
        hosted: whether the store is kept here, as a launcher does; else rank 0 keeps it.
        file_bytes: the largest file that the system lets a rank write.
        folders: of each rank, in place of the current one.
        paths: folders before all others of Python's path, the current one apart.
        program: whose arguments they are, as in `PROGRAMS`.
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
        folder = str(Path(folders[rank] if folders else "").absolute())
        fork = _Fork(
            words=words,
            folder=folder,
            outputs=(str(output), str(output)),
            variables=variables,
            paths=[folder, *map(str, paths)],
            most=(file_bytes or {}).get(rank),
            program=program,
        )
        running.append(Rank(process=fork.begin(), output=output))
    try:
        yield running
    finally:
        for one in running:
            one.process.kill()
            one.process.join()


@contextlib.contextmanager
def alone(
    *words: str,
    program: str = "petra-graph",
    ranks_fork: bool = False,
    network: str | None = None,
    name: str = "alone",
    **environment: str,
) -> Iterator[Rank]:
    """Start one process of the command line that belongs to no run, in the current folder.

    Args:
        words: its arguments.
        program: as in `PROGRAMS`.
        ranks_fork: whether the ranks that it launches are forks of it, and not interpreters that import everything anew.
        network: the name of a network of its own, as `ip netns` adds it.
        name: of the file for what it says, where several are at work.
        environment: its variables.
    """
    output, here = Path.cwd() / f"{name}.txt", str(Path.cwd())
    fork = _Fork(
        words=words,
        folder=here,
        outputs=(str(output), str(output)),
        variables=environment,
        paths=[here],
        program=program,
        ranks_fork=ranks_fork,
        network=network,
    )
    process = fork.begin()
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


def command(
    *words: str,
    paths: Sequence[Path] = (),
    program: str = "petra-graph",
    folder: Path | None = None,
    ranks_fork: bool = False,
) -> CompletedProcess[str]:
    """Run one command of a program, and wait for its end.

    Args:
        words: its arguments.
        folder: where it runs; None: the current one.
        paths: folders before all others of Python's path, as an environment's own packages are; the current one where there is none.
        program: as in `PROGRAMS`.
        ranks_fork: as for `alone`.
    """
    start_server()
    with TemporaryDirectory() as written:
        outputs = f"{written}/out", f"{written}/err"
        here, first = str(folder or Path.cwd()), [str(path) for path in paths]
        fork = _Fork(
            words=words,
            folder=here,
            outputs=outputs,
            # what the command starts in its turn finds the same packages
            variables={"PYTHONPATH": os.pathsep.join([*first, os.environ["PYTHONPATH"]])},
            paths=first or [here],
            program=program,
            ranks_fork=ranks_fork,
        )
        process = fork.begin()
        process.join()
        assert process.exitcode is not None
        return CompletedProcess([program, *words], process.exitcode, *(Path(file).read_text() for file in outputs))


def _run(fork: _Fork) -> None:
    """Be one process of a run."""
    set_start_method(None, force=True)  # else locks, as of tqdm, have names that outlive the process
    os.setsid()
    os.chdir(fork.folder)
    os.environ.update(fork.variables)
    sys.path[:0] = fork.paths
    for descriptor, output in zip((1, 2), fork.outputs, strict=True):
        with Path(output).open("a") as file:
            os.dup2(file.fileno(), descriptor)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", buffering=1, closefd=False)
    if fork.network is not None:
        with Path("/run/netns", fork.network).open() as entered:
            if ctypes.CDLL(None, use_errno=True).setns(entered.fileno(), _NETWORK) != 0:
                raise OSError(ctypes.get_errno(), "setns")
    if fork.most is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (fork.most, fork.most))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if fork.ranks_fork:
        patch.object(SubprocessHandler, "_popen", _forked_rank).start()
    code = resolve_name(PROGRAMS.get(fork.program, fork.program))([*fork.words])
    sys.stdout.flush()
    os._exit(code or 0)


def _forked_rank(
    _: SubprocessHandler | None, words: tuple[str, ...], variables: dict[str, str], **more: Any
) -> subprocess.Popen[bytes]:
    """Fork a rank that a launcher, this process, would start; only what a new interpreter would not share is put back."""

    def be_rank() -> None:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # the launcher's store is among them; and so `Popen` returns
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        logging.disable(logging.NOTSET)
        os.environ.clear()
        os.environ.update(variables)
        if "-P" in words and (here := str(Path.cwd())) in sys.path:
            sys.path.remove(here)
        sys.argv = ["petra-graph", *words[words.index("petra_graph") + 1 :]]
        try:
            code = main()
        except BaseException:  # noqa: BLE001  nothing of the launcher continues in here
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        os._exit(code)

    sys.stdout.flush()
    return subprocess.Popen(words, start_new_session=True, preexec_fn=be_rank, **more)  # noqa: PLW1509  its threads wait


def patient(words: Sequence[str]) -> int:
    """Run the command line with processes that give one another more time than a busy machine may take from them."""
    watchdog._GRACE_SECONDS = end._ANSWER_SECONDS = launch._HEARD_SECONDS = PATIENCE_SECONDS
    return main([*words])


def run_code(words: Sequence[str]) -> int:
    """Run code, the first word, with the others as its arguments."""
    code, *sys.argv[1:] = words
    exec(code, {"__name__": "__main__"})
    return 0


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
