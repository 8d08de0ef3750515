"""The strict transport between real processes: each end of a communicator is a thread, which is late by random times.

A send waits until its receive says that it is posted. `main(WORDS)` is petra-graph with this transport between all processes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Condition, Thread
from unittest.mock import patch

import torch
import torch.distributed as dist
from attrs import define, field, frozen

from petra_graph.cli.main import main as petra_graph
from petra_graph.program.stage_program import StageProgram
from petra_graph.runtime.control.waiting import Waker
from petra_graph.runtime.control.world import World
from petra_graph.runtime.transport.channel import LocalChannel
from petra_graph.runtime.transport.process_channels import PeerLost, ProcessChannels
from petra_graph.spec.run_tables import Transport
from petra_graph.training.processes import one_of_several
from tests.support.strict_transport import Posted, StrictReceiver, StrictSender

LONGEST_DELAY_SECONDS, LONGEST_START_SECONDS = 0.002, 0.5


@define(eq=False)
class _Process:
    rank: int
    waker: Waker
    done: list[str] = field(factory=list)
    changed: Condition = field(factory=Condition)

    def wait(self, _what: str, until: Callable[[], bool]) -> None:
        with self.changed:
            self.changed.wait_for(until)

    def ended(self, posted: Posted) -> None:
        with self.changed:
            posted.done = True
            self.changed.notify_all()
        self.waker.wake()


@frozen(eq=False)
class _Communicator:
    """This process's end."""

    process: _Process
    peer: int
    tag: int
    lost: Callable[[Exception], None]
    _posted: SimpleQueue[Posted] = field(factory=SimpleQueue)

    def __attrs_post_init__(self) -> None:
        Thread(target=self._serve, daemon=True).start()

    def post(self, _rank: int, posted: Posted) -> Posted:
        self._posted.put(posted)
        return posted

    def _serve(self) -> None:
        dice, word = random.Random(f"{self.process.rank} {self.tag}"), torch.zeros(1)
        try:
            while True:
                posted = self._posted.get()
                time.sleep(dice.random() * LONGEST_DELAY_SECONDS)
                if posted.kind == "receive":
                    dist.send(word, self.peer, tag=2 * self.tag)
                    dist.recv(posted.memory, self.peer, tag=2 * self.tag + 1)
                else:
                    dist.recv(word, self.peer, tag=2 * self.tag)
                    dist.send(posted.memory, self.peer, tag=2 * self.tag + 1)
                self.process.ended(posted)
        except Exception as error:  # noqa: BLE001  torch raises RuntimeError and its own
            self.lost(error)


def open_strict_channels(
    programs: Sequence[StageProgram],
    ranks: Sequence[int],
    world: World,
    *,
    waker: Waker,
    peer_lost: PeerLost,
    transport: Transport,
    device: str,
) -> ProcessChannels:
    """Stand for `open_channels`."""
    assert (transport, device) == ("auto", "cpu"), "it is the strict one"
    time.sleep(random.Random(world.rank).random() * LONGEST_START_SECONDS)
    channels, process = ProcessChannels(programs=programs, ranks=ranks), _Process(world.rank, waker)
    for tag, (key, channel) in enumerate(channels.channels.items()):
        ends = channels.ends(channel)
        if ends == (world.rank, world.rank):
            channels.senders[key] = channels.receivers[key] = LocalChannel()
        elif world.rank in ends and len(set(ends)) > 1:
            peer, name = channels.peer(key, world.rank), str(key)

            def lost(error: Exception, name: str = name, peer: int = peer) -> None:
                peer_lost(name, peer, error)

            communicator = _Communicator(process, peer, tag, lost)
            if ends[0] == world.rank:
                channels.senders[key] = StrictSender(process, communicator, channel, waits=False)
            else:
                awaited = key.direction == "forward"
                channels.receivers[key] = StrictReceiver(process, communicator, channel, ahead=True, awaited=awaited)
    return channels


def main(words: Sequence[str]) -> int:
    with patch.object(one_of_several, "open_channels", open_strict_channels):
        return petra_graph([*words, "--set", "run.scheduling=static"])
