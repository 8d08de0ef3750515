"""Strangers on the network: on one machine no port is open to them."""

from __future__ import annotations

import contextlib
import signal
import socket
from pathlib import Path

from tests.support.forks import RUN, alone, children, ended, under_way, until

LISTEN = "0A"


def listeners(pids):
    """Return the addresses at which processes listen, as (address in hex, port)."""
    inodes = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and fields[9] in inodes:
                address, _, port = fields[1].partition(":")
                found.append((address, int(port, 16)))
    return found


LOOPBACK = {
    socket.inet_aton("127.0.0.1")[::-1].hex().upper(),
    "0000000000000000FFFF00000100007F",
    "00000000000000000000000001000000",
}


def test_on_one_machine_only_the_machine_itself_can_connect(shared_folder):
    """The launcher's store and, with this transport, gloo of each process."""
    with alone(*RUN, "--processes", "2", "--set", "run.transport=process-group", ranks_fork=True) as launcher:
        until(under_way)
        found = listeners([launcher.process.pid, *children(launcher.process.pid)])
        assert found, "the store listens at least"
        assert {address for address, _ in found} <= LOOPBACK
        launcher.kill(signal.SIGINT)
        assert ended([launcher]) == [130]
