"""Processes of a run, started as torchrun would start them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from torch._C._distributed_c10d import TCPStore

from tests.support import ROOT


@contextmanager
def store() -> Iterator[TCPStore]:
    """Keep the store that they meet at, on a port that the system chooses."""
    yield TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


@contextmanager
def started(meeting: TCPStore, processes: int, *arguments: str) -> Iterator[Sequence[subprocess.Popen[str]]]:
    """Start so many Python processes; those still running at the end are killed."""
    running = [
        subprocess.Popen(
            [sys.executable, *arguments],
            env=environment(
                RANK=str(rank),
                WORLD_SIZE=str(processes),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(meeting.port),
                TORCHELASTIC_USE_AGENT_STORE="True",
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    try:
        yield running
    finally:
        for process in running:
            with suppress(ProcessLookupError):
                process.kill()
            process.communicate()


def torchrun(
    node: int, address: str, arguments: Sequence[str], *before: str, **variables: str
) -> subprocess.Popen[str]:
    """Start the agent of one of two nodes, with one process each.

    Args:
        node: 0 or 1.
        address: of the store, "host:port".
        arguments: of `petra-graph`.
        before: a command that starts the agent.
        variables: of the environment.
    """
    host, _, port = address.partition(":")
    return subprocess.Popen(
        [
            *before,
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node)),
            *("--nproc-per-node", "1", "--master-addr", host, "--master-port", port),
            *("-m", "petra_graph", *arguments),
        ],
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(processes: Sequence[subprocess.Popen[str]], patience_seconds: float) -> None:
    """Wait until all have ended well."""
    end = time.monotonic() + patience_seconds
    for process in processes:
        out, err = process.communicate(timeout=max(1.0, end - time.monotonic()))
        assert process.returncode == 0, out + err
