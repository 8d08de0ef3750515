"""Both policies compute the same bits on any number of processes; under `static` the order is the program's alone.

Processes are threads here, one of which runs at a time: they are handed over where one sleeps. Channels between them are
those of real processes, in shared memory.
"""

from __future__ import annotations

import time
from threading import Lock, Thread

import pytest
import torch

from petra_graph.program.schedule import static_order
from petra_graph.runtime.channels import LocalChannel, SharedMemoryReceiver, SharedMemorySender
from petra_graph.runtime.loop import Scheduler
from petra_graph.runtime.open_channels import ProcessChannels
from petra_graph.runtime.waiting import Waker
from petra_graph.runtime.watchdog import Supervisor
from petra_graph.spec.model import ClipSpec
from tests.support.pipelines import GRAPHS, SHAPES, batches, pipeline

MICRO_BATCHES = 7
PATIENCE_SECONDS = 30.0
BATCH = 4
SETTINGS = {"lockstep": {"schedule": "lockstep", "accumulation": 2}, "1f1b": {"schedule": "1f1b"}}


class Sleeper(Supervisor):
    """A supervisor that lets the other processes run where its own sleeps."""

    def __init__(self, running: Lock) -> None:
        super().__init__()
        self.waker, self._running = Waker(), running

    def sleep(self) -> None:
        self._running.release()
        self.waker.wait()
        self._running.acquire()


class Process:
    """Some of the stages, and what they did in which order."""

    def __init__(self, built, ranks, rank, running) -> None:
        self.rank, self.running = rank, running
        self.executors = [e for e, host in zip(built.executors, ranks, strict=True) if host == rank]
        self.supervisor = Sleeper(running)
        self.channels = ProcessChannels(programs=built.programs, ranks=ranks)
        self.performed: list[str] = []
        self.error: BaseException | None = None
        for executor in self.executors:
            for verb in ("forward", "backward", "update"):
                self._watch(executor, verb)

    def _watch(self, executor, verb) -> None:
        operation = getattr(executor, verb)

        def watched(*arguments):
            self.performed.append(f"{verb} {arguments[0] if verb != 'update' else ''}@{executor.program.index}")
            return operation(*arguments)

        setattr(executor, verb, watched)

    def train(self, policy: str, data) -> None:
        how = {"supervisor": self.supervisor, "policy": policy}
        with self.running:
            try:
                Scheduler(self.executors, self.channels, **how).train(data, range(MICRO_BATCHES), lambda _: None)
            except BaseException as error:  # noqa: BLE001  it is raised in the test's own thread
                self.error = error


def connect(processes) -> None:
    for channel in processes[0].channels.channels.values():
        sender, receiver = (processes[rank] for rank in processes[0].channels.ends(channel))
        if sender is receiver:
            sender.channels.senders[channel.key] = sender.channels.receivers[channel.key] = LocalChannel()
            continue
        end = SharedMemoryReceiver(channel.capacity, channel.slot_bytes, receiver.supervisor.waker)
        receiver.channels.receivers[channel.key] = end
        sender.channels.senders[channel.key] = SharedMemorySender(end.address, sender.supervisor.waker)


def trained(graph: str, settings, processes: int, policy: str):
    """Train on so many processes; return their programs, what each performed, and the parameters."""
    built = pipeline(GRAPHS[graph], SHAPES[graph], compute="float32", batch=BATCH, **settings)
    stages = len(built.executors)
    ranks = tuple(stage * processes // stages for stage in range(stages))
    running = Lock()
    made = [Process(built, ranks, rank, running) for rank in range(processes)]
    connect(made)
    data = [(x.float(), y) for x, y in batches(SHAPES[graph], MICRO_BATCHES, size=BATCH)]
    # Daemons: Python does not wait at its end for processes that wait for each other.
    threads = [Thread(target=process.train, args=(policy, data), daemon=True) for process in made]
    for thread in threads:
        thread.start()
    end = time.monotonic() + PATIENCE_SECONDS
    for thread in threads:
        thread.join(timeout=max(0.0, end - time.monotonic()))
    waiting = [process for process, thread in zip(made, threads, strict=True) if thread.is_alive()]
    assert not waiting, "; ".join(f"process {one.rank} waits after {one.performed[-1:]}" for one in waiting)
    for process in made:
        if process.error is not None:
            raise process.error
    return built, made


def stages_of(graph: str) -> int:
    return len(GRAPHS[graph])


@pytest.mark.parametrize(("graph", "name"), [("chain", "lockstep"), ("branches", "1f1b")])
def test_policies_and_processes_change_no_bit_and_a_static_order_is_a_function_of_the_program_alone(graph, name):
    settings = SETTINGS[name]
    alone = trained(graph, settings, 1, "arrival")[0].parameters()
    for processes in (1, 2, stages_of(graph)):
        built, made = trained(graph, settings, processes, "static")
        same_bits(alone, built, processes)
        whole = list(static_order(built.programs, range(MICRO_BATCHES)))
        for process in made:
            own = {executor.program.index for executor in process.executors}
            expected = [
                f"{action.verb} {action.micro_batch if action.verb != 'update' else ''}@{stage}"
                for stage, action in whole
                if stage in own
            ]
            assert process.performed == expected
        if processes > 1:
            same_bits(alone, trained(graph, settings, processes, "arrival")[0], processes)


def same_bits(alone, built, processes):
    found = built.parameters()
    assert all(torch.equal(value, found[key]) for key, value in alone.items()), processes


def test_one_norm_over_all_stages_under_a_static_order():
    """Updates wait for each other there, and no stage may wait in the order for its own update's turn."""
    clip = ClipSpec(limit=0.1, scope="global")
    data = batches((8,), 9)
    built = [
        pipeline(GRAPHS["branches"], (8,), method="gpipe", accumulation=4, clip=clip, policy=policy)
        for policy in ("arrival", "static")
    ]
    for each in built:
        each.train(data)
    one, other = (each.parameters() for each in built)
    assert all(torch.equal(one[key], other[key]) for key in one)
