"""Processes of `petra-graph run` that start in no time: forks of one that has imported everything.

They are real processes, as torchrun would start them, which can be killed and can fail on their own.
"""

import contextlib
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
from multiprocessing import forkserver, get_context, resource_tracker, set_start_method
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from pkgutil import resolve_name
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from attrs import frozen
from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

from petra_graph.cli.main import main
from tests.support import ROOT, SERVER

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
if SERVER in os.environ:  # the one that serves all workers of xdist
    _server = vars(forkserver)["_forkserver"]
    _server._forkserver_address, _server._forkserver_alive_fd = os.environ[SERVER], os.open(os.devnull, os.O_WRONLY)
    _server.ensure_running = lambda: None

PETRA_GRAPH = "petra_graph.cli.main:main"
"""A program is the location of the function that is called with its words."""


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
def _begun(output: Path, *processes: Mapping[str, Any]) -> Iterator[list[Rank]]:
    """Fork processes, each with its parameters of `_run`, and kill those that are left; output goes into files of that name and a number."""
    running: list[Rank] = []
    try:
        for at, what in enumerate(processes):
            file = output.with_name(f"{output.name}{at}.txt")
            process = _FORKS.Process(target=_run, kwargs={"outputs": (file, file), **what})
            process.start()
            running.append(Rank(process=process, output=file))
        yield running
    finally:
        for rank in running:
            rank.process.kill()
            rank.process.join()


@contextlib.contextmanager
def ranks(
    *arguments: Sequence[str],
    hosted: bool = True,
    file_bytes: Mapping[int, int] | None = None,
    program: str = PETRA_GRAPH,
    **environment: str | Sequence[str],
) -> Iterator[list[Rank]]:
    """Start a process of a program for each list of arguments; `hosted`: the store is kept here, as a launcher does, and not by rank 0."""
    # pytest's own process keeps it, as a fork of it would inherit its threads' locks: these here come from elsewhere.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if hosted else None
    common = {
        "WORLD_SIZE": str(len(arguments)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port if store else free_port()),
        "TORCHELASTIC_USE_AGENT_STORE": str(hosted),
        **environment,
    }
    processes = [
        {
            "words": words,
            "folder": Path.cwd(),
            "program": program,
            "variables": {"RANK": str(rank)}
            | {n: one if isinstance(one, str) else one[rank] for n, one in common.items()},
            "most": (file_bytes or {}).get(rank),
        }
        for rank, words in enumerate(arguments)
    ]
    with _begun(Path.cwd() / "rank", *processes) as running:
        yield running


@contextlib.contextmanager
def alone(*words: str, program: str = PETRA_GRAPH, name: str = "alone") -> Iterator[Rank]:
    """Start one process of a program that belongs to no run, in the current folder; `name` is that of the file for what it says."""
    what = {"words": words, "folder": Path.cwd(), "program": program}
    with _begun(Path.cwd() / name, what) as (rank,):
        yield rank


def command(*words: str, paths: Sequence[Path], folder: Path, program: str = PETRA_GRAPH) -> CompletedProcess[str]:
    """Run one command of a program in a folder to its end; `paths` come before all others of Python's path, as an environment's packages do."""
    start_server()
    # what the command starts in its turn finds the same packages
    variables = {"PYTHONPATH": os.pathsep.join([*map(str, paths), os.environ["PYTHONPATH"]])}
    with TemporaryDirectory() as written:
        output, said = Path(written, "output"), Path(written, "said")
        what = {"words": words, "folder": folder, "program": program, "variables": variables, "paths": paths}
        with _begun(output, {**what, "outputs": (output, said)}) as (rank,):
            rank.process.join()
        assert rank.code is not None
        return CompletedProcess([program, *words], rank.code, output.read_text(), said.read_text())


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
    """Start what forks, and this process's tracker of resources, in a folder where they stay; a worker of xdist has a server."""
    with contextlib.chdir(ROOT):
        resource_tracker.ensure_running()
        if SERVER not in os.environ:
            forkserver.ensure_running()


def _run(
    *,
    words: Sequence[str],
    outputs: tuple[Path, Path],
    folder: Path,
    program: str,
    variables: Mapping[str, str] | None = None,
    paths: Sequence[Path] = (),
    most: int | None = None,
) -> None:
    """Be one process of a run, whose folder or `paths` come first in Python's path; `most` is the size of the largest file that it can write."""
    # Torch makes a fork's pool of threads at its first use, and two threads at once would abort.
    torch.set_num_threads(1)
    set_start_method(None, force=True)  # else locks, as of tqdm, have names that outlive the process
    os.setsid()
    os.chdir(folder)
    os.environ.update(variables or {})
    sys.path[:0] = map(str, paths or [folder])
    for descriptor, output in zip((1, 2), outputs, strict=True):
        with output.open("a") as file:
            os.dup2(file.fileno(), descriptor)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", buffering=1, closefd=False)
    if most is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    patch.object(subprocess, "Popen", _Forked).start()
    patch.object(subprocess_handler, "Popen", _Forked, create=True).start()  # torch 2.8 has the one above
    code = resolve_name(program)([*words])
    sys.stdout.flush()
    os._exit(code or 0)


class _Forked(subprocess.Popen[bytes]):
    """Forks `python -m petra_graph`, where a launcher or a sweep would start an interpreter; what that would not share is put back."""

    def __init__(self, args: Sequence[str], *, env: Mapping[str, str] | None = None, **more: Any) -> None:
        def be_petra_graph() -> None:
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # a launcher's store is among them; and so `Popen` returns
            torch.set_num_threads(1)
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                if callable(signal.getsignal(number)):
                    signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            logging.disable(logging.NOTSET)
            if env is not None:
                os.environ.clear()
                os.environ.update(env)
            if "-P" in args and (here := str(Path.cwd())) in sys.path:
                sys.path.remove(here)
            sys.argv = ["petra-graph", *args[args.index("petra_graph") + 1 :]]
            try:
                code = main()
            except BaseException:  # noqa: BLE001  nothing of what forked this continues in here
                traceback.print_exc()
                code = 1
            sys.stdout.flush()
            os._exit(code)

        sys.stdout.flush()
        if not isinstance(args, str) and "petra_graph" in args:
            more["preexec_fn"] = be_petra_graph
        super().__init__(args, env=env, **more)


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
