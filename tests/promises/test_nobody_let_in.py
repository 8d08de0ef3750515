"""Strangers on the network: on one machine no port is open to them; values that they forge are as if they were not there."""

from __future__ import annotations

import contextlib
import signal
import socket
from datetime import timedelta
from pathlib import Path

import pytest
from torch._C._distributed_c10d import PrefixStore, TCPStore

from petra_graph.errors import RunFailed
from petra_graph.record.run_directory import run_directory
from petra_graph.runtime.control.run_store import RunStore
from tests.support.forks import ENDLESS, RUN, alone, children, ended, ranks, under_way, until, wait_for_progress
from tests.support.runs import only_run, summary_of
from tests.support.strangers import FORGED, KNOWN
from tools.faults import forge

LISTEN = "0A"
ATTEMPT = "petra-graph//"


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


def test_ranks_of_one_machine_without_a_launcher(shared_folder):
    with ranks(RUN, RUN, hosted=False) as running:
        until(under_way)
        found = listeners([rank.process.pid for rank in running])
        assert found
        assert {address for address, _ in found} <= LOOPBACK
        running[0].kill(signal.SIGINT)
        ended(running)


def test_forged_values_stop_nothing(shared_folder):
    """A stranger on the network stopped a run, and had a text of its choice written into a folder of its choice.

    `test_launch.py` has one on another machine.
    """
    (shared_folder / "shared.toml").write_text(ENDLESS)
    served = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with ranks(RUN, RUN, port=served.port, hosted=False, TORCHELASTIC_USE_AGENT_STORE="True", **KNOWN) as running:
        until(under_way)
        stranger = TCPStore("127.0.0.1", served.port, is_master=False, wait_for_workers=False)
        forge(stranger, ATTEMPT, 2, FORGED)
        wait_for_progress()
        assert [rank.code for rank in running] == [None, None]
        running[0].kill(signal.SIGINT)
        assert ended(running) == [130, 130]
    assert "of its choice" not in "".join(rank.said for rank in running)
    assert summary_of(only_run())["status"] == "interrupted"


@pytest.fixture
def server():
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5))


def test_a_value_counts_only_under_its_name_in_its_run(server):
    ours = RunStore(server, "run", "secret")
    ours.set("asked", "SIGINT")
    content = PrefixStore("run", server).get("asked")
    PrefixStore("run", server).set("stop", content)
    PrefixStore("another", server).set("asked", content)
    assert ours.get("asked") == "SIGINT"
    assert ours.get("stop") is None
    assert RunStore(server, "another", "secret").get("asked") is None
    assert RunStore(server, "run", "guessed").get("asked") is None


@pytest.mark.parametrize("content", ["", "SIGINT", "\udcff", '{"a": 1}', "0" * 64, "é x"])
def test_no_content_is_an_error(server, content):
    PrefixStore("run", server).set("asked", content.encode("utf-8", "surrogateescape"))
    assert RunStore(server, "run", "secret").get("asked") is None


def test_processes_with_other_secrets_are_told(server):
    RunStore(server, "run", "one").set("process/0", {})
    with pytest.raises(RunFailed, match="not written with this process's PETRA_GRAPH_SECRET"):
        RunStore(server, "run", "other").wait("process/0", 1, "rank 0 has not come")


@pytest.mark.parametrize("name", ["", ".", "..", "/tmp/x", "../x", "a/b", "a/"])
def test_a_run_directory_is_a_name_below_the_ranks_own(name):
    assert run_directory("runs", name) is None
    assert run_directory("runs", "20260131T120000Z-x-3f9a1c") == Path("runs/20260131T120000Z-x-3f9a1c")
