"""A run on several processes of this machine: the specification is checked here, the processes do the rest.

Decision: only the check step runs before processes start. They prepare as every run does, and one of them reports the
problems; preparing here first would make every correct run wait for it twice.

Decision: torch's elastic launcher starts them, in this process. It makes the store for the rendezvous, on a port that the system chooses,
so no port can be in use. The store and gloo listen for processes of this machine alone.

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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn
from uuid import uuid4

from torch._C._distributed_c10d import TCPStore

from petra_graph.errors import FailedOnAnotherProcess, Interrupted, RunFailed, SpecError
from petra_graph.planning.check_spec import check_spec
from petra_graph.runtime.store import COMPLETE, HERE, RunStore, launch_name, listen_here, rank_info_from
from petra_graph.runtime.system import LAUNCHER, REQUESTS, numbers_of, stop_requests
from petra_graph.runtime.waiting import AwakeTime
from petra_graph.training.resume import first_folders

_HEARD_SECONDS, _LOOK_SECONDS = 5.0, 0.02
"""The longest that a user who insists waits for processes that do not hear."""


def run_on_processes(
    path: str,
    overrides: Sequence[str],
    processes: int,
    flags: Sequence[str] = (),
    *,
    resume: Path | None = None,
    max_restarts: int = 0,
    plan: str | None = None,
) -> None:
    """Train a specification; the processes print and write everything.

    Args are those of `run`, and:
        processes: how many, at least 2.
        flags: of the command line, to be passed on.
        max_restarts: how often the processes are started again, from the latest checkpoint, where the run has failed.

    Raises:
        SpecError, PluginError: before anything is started.
        Interrupted: a request to stop has arrived.
        FailedOnAnotherProcess: the run failed, and one of its processes has reported it.
        RunFailed: the run failed, and none of its processes could report it.
    """
    if rank_info_from(os.environ) is not None:
        message = "--processes starts processes, and this is already one of several"
        raise SpecError(message, hint="leave --processes out under torchrun")
    if path == "-":
        raise SpecError("a spec from the standard input cannot be read by several processes", hint="write it to a file")
    spec = check_spec(path, overrides, folders=() if resume is None else first_folders(resume)).spec
    options = [part for override in overrides for part in ("--set", override)]
    options += [] if plan is None else ["--plan", plan]
    words = ["run", path if resume is None else f"--resume={resume}", *options, *flags]

    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    listening, name = listen_here(0), uuid4().hex
    port = listening.getsockname()[1]
    server = TCPStore(
        HERE[0], port, is_master=True, wait_for_workers=False, multi_tenant=True, master_listen_fd=listening.detach()
    )
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=name,
        rdzv_backend="static",
        rdzv_endpoint=f"{HERE[0]}:{port}",
        rdzv_configs={"rank": 0},
        max_restarts=max_restarts,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
    )
    store = RunStore(server, launch_name(name))

    def ask(signal_name: str) -> None:
        store.set("asked", signal_name)

    def insist() -> NoReturn:
        """End, once the processes know that they were asked to stop: else the end of their store would be a failure to them."""
        waits = AwakeTime()
        while waits.seconds < _HEARD_SECONDS and not all(store.get(f"heard/{rank}") for rank in range(processes)):
            time.sleep(_LOOK_SECONDS)
        os._exit(Interrupted.exit_code)

    # A request goes through the store; the launcher ends at a second SIGINT, and the processes follow.
    requests = stop_requests(ask, insist, heard=(*REQUESTS, *numbers_of(spec.checkpoint.signal)))
    with requests, _launching(), ThreadPoolExecutor(1) as thread:
        try:
            # -P: a `random.py` in the current folder must not be taken for the standard library's.
            thread.submit(elastic_launch(config, sys.executable), "-P", "-m", "petra_graph", *words).result()
        except ChildFailedError as error:
            code = store.get(COMPLETE)  # whatever ended a process after that
            codes = {rank: failure.exitcode for rank, failure in sorted(error.failures.items())}
            if code is None and not (agreed := {one for one in codes.values() if one > 0}):
                killed = ", ".join(f"rank {rank} by {signal.Signals(-one).name}" for rank, one in codes.items())
                message = f"the processes were killed: {killed}"
                raise RunFailed(message, "see whether the system ran out of memory") from None
            if code is None:  # that of a failure, if there is one among them
                code = min(agreed - {Interrupted.exit_code}, default=Interrupted.exit_code)
            if code:
                raise (Interrupted() if code == Interrupted.exit_code else FailedOnAnotherProcess(code)) from None


@contextmanager
def _launching() -> Iterator[None]:
    """Name this launcher to the processes, and to none that this one starts later; silence its own log: the processes report failures."""
    before, os.environ[LAUNCHER] = logging.root.manager.disable, str(os.getpid())
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
        os.environ.pop(LAUNCHER, None)
