"""Processes of a run, started as torchrun would start them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from tests.support import ROOT


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


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
