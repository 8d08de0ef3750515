"""The launch of a run's processes on this machine, by torch's elastic launcher in this process.

Decision: the launcher makes the store for the rendezvous, on a port that the system chooses, so no port can be in use. The
store and gloo listen for processes of this machine alone, and the processes sign what they write with a secret that the
launcher draws.

A request to stop goes through the store, and the processes end by themselves: a forwarded signal would reach each of
them at another moment, and the launcher would kill those that are not done in time. So the launcher runs in a thread,
where torch installs no signal handlers, whatever its version: this process keeps its own.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from secrets import token_hex
from typing import NoReturn
from uuid import uuid4

from attrs import frozen
from torch._C._distributed_c10d import TCPStore

from petra_graph.errors import Interrupted
from petra_graph.runtime.control.rank_info import SECRET, launch_name
from petra_graph.runtime.control.run_store import COMPLETE, HERE, RunStore, listen_here
from petra_graph.runtime.control.start_up import LAUNCHER, REQUESTS
from petra_graph.runtime.control.stop_signals import stop_requests

_HEARTBEATS_SECONDS = 0.5


@frozen
class Ended:
    """The end of a run's processes."""

    code: int
    """The exit code of the whole."""
    directory: str | None
    """The name of the run's directory, where it was created."""
    asked: bool
    """A request to stop has come."""
    killed: str = ""
    """The signals, where all processes were killed, so that none could say why."""


def launch(arguments: Sequence[str], processes: int, more: Sequence[int] = ()) -> Ended:
    """Run `petra-graph` with these arguments in several processes.

    Args:
        more: signals that ask the run to stop, in addition to the usual ones.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    listening = listen_here(0)
    port = listening.getsockname()[1]
    server = TCPStore(
        HERE[0], port, is_master=True, wait_for_workers=False, multi_tenant=True, master_listen_fd=listening.detach()
    )
    name = uuid4().hex
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=name,
        rdzv_backend="static",
        rdzv_endpoint=f"{HERE[0]}:{port}",
        rdzv_configs={"rank": 0},
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
    )
    secret = os.environ.get(SECRET) or token_hex()
    store = RunStore(server, launch_name(name), secret)
    asked: list[str] = []

    def ask(signal_name: str) -> None:
        asked.append(signal_name)
        store.set("asked", signal_name)

    code, killed = 0, ""
    # A request goes through the store; the launcher ends at a second SIGINT, and the processes follow.
    requests = stop_requests(ask, _end, heard=(*REQUESTS, *more))
    inherited = _environment({SECRET: secret, LAUNCHER: str(os.getpid())})
    with requests, inherited, _quiet(), ThreadPoolExecutor(1) as thread:
        try:
            # -P: a `random.py` in the current folder must not be taken for the standard library's.
            thread.submit(elastic_launch(config, sys.executable), "-P", "-m", "petra_graph", *arguments).result()
        except ChildFailedError as error:
            code, killed = _exit_code({rank: failure.exitcode for rank, failure in error.failures.items()})
            if (complete := store.get(COMPLETE)) is not None:  # whatever ended a process after that
                code, killed = complete, ""
    return Ended(code, store.get("directory"), bool(asked), killed)


def _end() -> NoReturn:
    """End at once, after the time in which the processes learn that they were asked to stop."""
    time.sleep(_HEARTBEATS_SECONDS)
    os._exit(Interrupted.exit_code)


def _exit_code(codes: Mapping[int, int]) -> tuple[int, str]:
    """Return the exit code that the processes agreed on, killed ones left out, and the signals where all were killed."""
    agreed = {code for code in codes.values() if code > 0}
    if not agreed:
        signals = (f"rank {rank} by {signal.Signals(-code).name}" for rank, code in sorted(codes.items()))
        return 1, ", ".join(signals)
    return min(agreed - {Interrupted.exit_code}, default=Interrupted.exit_code), ""


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables that the processes inherit, and no process that this one starts later: it would take this launcher for its own."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the launcher's own log: the processes report failures."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
