"""A stranger on the network of a run, without its secret: what it writes into the run's store."""

from __future__ import annotations

from collections.abc import Sequence

FORGED = {
    "asked": "SIGTERM",
    "stop": [1, "SIGTERM"],
    "failure": {"rank": 0, "problems": [["a text of its choice", ""]]},
    "directory": "/tmp/of-its-choice",
}
KNOWN = {"PETRA_GRAPH_SECRET": "known to the run alone"}


def main(address: Sequence[str]) -> None:
    """Forge values of a run that torchrun started, whose store is at a host and a port."""
    host, port = address
    from torch._C._distributed_c10d import TCPStore

    from tools.faults import forge

    client = TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    forge(client, "petra-graph/none/0", 2, FORGED)
