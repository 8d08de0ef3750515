"""A stranger on the network of a run, without its secret: what it writes into the run's store."""

from __future__ import annotations

import sys

FORGED = {
    "asked": "SIGTERM",
    "stop": [1, "SIGTERM"],
    "failure": {"rank": 0, "problems": [["a text of its choice", ""]]},
    "directory": "/tmp/of-its-choice",
}
KNOWN = {"PETRA_GRAPH_SECRET": "known to the run alone"}


def main(host: str, port: str) -> None:
    """Forge values of a run that torchrun started."""
    from torch._C._distributed_c10d import TCPStore

    from tools.faults import forge

    client = TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    forge(client, "petra-graph/none/0", 2, FORGED)


if __name__ == "__main__":
    main(*sys.argv[1:])
