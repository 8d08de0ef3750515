"""Two processes: PETRA beside what else two processes can do, and beside the machine's own ceiling.

Everything runs in turns in one pair of processes, one thread each; read the ratios, which are medians over the rounds.

    ceiling              two independent processes, each training the whole network, against one of them alone
    petra                1f1b, two stages, cut by the planner with a profile of this machine
    lockstep             the same stages with twice the micro-batches in flight, so that uneven times matter less
    torch 1F1B, GPipe    torch.distributed.pipelining with 4 and 8 micro-batches of the same batch, plain and checkpointed
    DDP                  torch's DistributedDataParallel, half of the batch each

All train the same network on the same number of samples an update. Bytes are live tensor bytes in a pass of their own:
activations, gradients and messages, and not parameters or what an optimizer keeps; PETRA's slots come on top and are
given beside them. Waiting is the share of a process's time in which its stages wait for a message or for room, in all of a
measurement and between its first and last tenth, where the pipeline neither fills nor drains.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import torch
import torch.distributed as dist
from attrs import evolve
from baselines import Baselines
from duel import RANKS, Contestant, Duel
from network import save
from torch._C._distributed_c10d import TCPStore
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

from petra_graph.runtime.keep_freed_memory import keep_freed_memory
from petra_graph.runtime.rank_info import rank_info_from
from petra_graph.runtime.stop_signals import hard_exit
from petra_graph.runtime.world import World

SPEC = """\
name = "parallel"
graph.input = {{ shape = [3, {side}, {side}], dtype = "uint8" }}
[[graph.node]]
name = "stem"
block = "conv-stem"
options = {{ channels = {half} }}
[[graph.node]]
name = "block"
block = "rev-basic"
repeat = {blocks}
[[graph.node]]
name = "head"
block = "pool-linear"
options = {{ outputs = 10 }}
[method]
schedule = "1f1b"
[data]
name = "random"
options = {{ shape = [3, {side}, {side}], classes = 10 }}
"""


@click.command()
@click.option("--width", default=32, show_default=True, help="Channels of both streams together.")
@click.option("--side", default=32, show_default=True, help="Pixels.")
@click.option("--blocks", default=17, show_default=True, help="Residual blocks; 9 and 17 give two stages alike.")
@click.option("--batch", default=32, show_default=True, help="Samples in an update.")
@click.option("--updates", default=12, show_default=True, help="In one measurement.")
@click.option("--rounds", default=10, show_default=True, help="Measurements of each.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(
    width: int,
    side: int,
    blocks: int,
    batch: int,
    updates: int,
    rounds: int,
    write: bool,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder, "parallel.toml")
        spec.write_text(SPEC.format(side=side, half=width // 2, blocks=blocks))
        answer = Path(folder, "answer.json")
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        workers = [
            subprocess.Popen(
                [sys.executable, __file__],
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "RANK": str(rank),
                    "WORLD_SIZE": str(RANKS),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(store.port),
                    "TORCHELASTIC_USE_AGENT_STORE": "True",
                    "PETRA_BENCH": json.dumps([str(spec), batch, updates, rounds, str(answer)]),
                },
            )
            for rank in range(RANKS)
        ]
        codes = [worker.wait() for worker in workers]
        if any(codes):
            sys.exit(max(codes))
        setting = {"width": width, "side": side, "blocks": blocks, "batch": batch, "updates": updates, "rounds": rounds}
        result = {**setting, **json.loads(answer.read_text())}
    click.echo(json.dumps(result, indent=2))
    if write:
        click.echo(f"written: {save('parallel', result)}", err=True)


# --- one of the two processes ----------------------------------------------------------------------------------------


def contestants(duel: Duel) -> Iterator[tuple[str, Contestant]]:
    """Yield all, in both processes at the same time."""
    cut, _ = duel.planned()
    whole = duel.alone("reversible-backprop", cut)
    yield "one reversible process", whole if duel.world.rank == 0 else evolve(whole, train=None)
    yield "two independent processes", whole
    plain = duel.alone("backprop", cut)
    yield "one plain process", plain if duel.world.rank == 0 else evolve(plain, train=None)
    yield "petra", duel.petra("petra", cut)
    yield "petra, lockstep", duel.petra("lockstep", cut, "method.schedule=lockstep")
    baselines = Baselines(duel)
    for again in (False, True):
        stages = baselines.balanced(again=again)
        for schedule in (Schedule1F1B, ScheduleGPipe):
            for parts in (4, 8):
                name = f"torch {schedule.__name__.removeprefix('Schedule')}, {parts} micro-batches"
                pipeline = baselines.pipeline(schedule, parts, stages, again=again)
                yield f"{name}, checkpointed" if again else name, pipeline
    yield "DDP", baselines.ddp()


def work(spec: str, batch: int, updates: int, rounds: int, answer: str) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    place = rank_info_from(os.environ)
    assert place is not None
    world = World(place)
    world.rendezvous()
    world.connect()
    duel = Duel(world, spec, batch, updates)
    ready = dict(contestants(duel))
    for name, contestant in ready.items():
        duel.timed(contestant)
        if world.rank == 0:
            click.echo(f"warmed up: {name}", err=True)
    found: dict[str, list[dict[str, list[float]]]] = {name: [] for name in ready}
    for _ in range(rounds):
        for name, contestant in ready.items():
            found[name].append(duel.timed(contestant))
    peaks = {name: duel.peak(contestant) for name, contestant in ready.items()}
    slots = {name: duel.all(contestant.slot_bytes) for name, contestant in ready.items() if contestant.slot_bytes}
    if world.rank == 0:
        result = _result(found, peaks, slots, duel.planned(), batch * updates)
        Path(answer).write_text(json.dumps(result))
    dist.barrier()
    duel.watchdog.close()
    hard_exit(0)


def _result(
    found: dict[str, list[dict[str, list[float]]]],
    peaks: dict[str, list[int]],
    slots: dict[str, list[int]],
    cut: tuple[list[list[str]], float],
    samples: int,
) -> dict[str, Any]:
    seconds = {name: [max(one["seconds"]) for one in each] for name, each in found.items()}

    def times(name: str, other: str) -> float:
        """How many times faster one is than another, in the same round."""
        return statistics.median(b / a for a, b in zip(seconds[name], seconds[other], strict=True))

    def shares(which: str) -> dict[str, list[float]]:
        return {
            name: [round(statistics.median(one[which][rank] for one in each), 4) for rank in range(RANKS)]
            for name, each in found.items()
            if name.startswith("petra")
        }

    ceiling = 2 / times("one reversible process", "two independent processes")
    petra = times("petra", "one reversible process")
    ours = [name for name in seconds if name.startswith("petra")]
    return {
        "last node of the first stage": cut[0][0][-1],
        "share of two processes that the cut can use": round(cut[1], 3),
        "machine's ceiling (two independent processes against one)": round(ceiling, 3),
        "petra against one reversible process": round(petra, 3),
        "of two independent processes' throughput": {
            name: round(times(name, "two independent processes") / 2, 3) for name in ours
        },
        "petra against": {name: round(times("petra", name), 3) for name in seconds if name != "petra"},
        "images per second": {
            name: round((1 + (name == "two independent processes")) * samples / statistics.median(each), 1)
            for name, each in seconds.items()
        },
        "waiting, share of each process's time": shares("waiting"),
        "waiting between fill and drain": shares("steady"),
        "peak live tensor bytes of each process": peaks,
        "bytes of slots in each process": slots,
    }


if __name__ == "__main__":
    if "PETRA_BENCH" in os.environ:
        work(*json.loads(os.environ["PETRA_BENCH"]))
    else:
        main()
