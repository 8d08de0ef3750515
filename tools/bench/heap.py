"""What it costs to give freed memory back: one network trained by two processes in turns, of which one keeps what it frees.

Prints page faults per micro-batch, and how much faster the process that keeps memory is, as the median over bursts that take
turns. How much glibc gives back depends on where small allocations happen to lie, so several pairs of processes are tried.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

import click
from network import prepared, runtime_of, save
from parallel import SPEC

from petra_graph.runtime.control.keep_freed_memory import keep_freed_memory
from petra_graph.training.prepared_run import fix_arithmetic

BURST = 4


@click.command()
@click.option("--width", default=32, show_default=True, help="Channels of both streams together.")
@click.option("--side", default=32, show_default=True, help="Pixels.")
@click.option("--blocks", default=8, show_default=True, help="Residual blocks.")
@click.option("--batch", default=16, show_default=True, help="Samples in a micro-batch.")
@click.option("--bursts", default=15, show_default=True, help=f"Measurements of {BURST} micro-batches.")
@click.option("--pairs", default=5, show_default=True, help="Pairs of processes.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(width: int, side: int, blocks: int, batch: int, bursts: int, pairs: int, write: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder, "heap.toml")
        spec.write_text(SPEC.format(side=side, half=width // 2, blocks=blocks))
        found = [_pair(spec, batch, bursts) for _ in range(pairs)]
    setting = {"width": width, "side": side, "blocks": blocks, "batch": batch, "bursts": bursts}
    result = {**setting, "pairs of processes": found}
    click.echo(json.dumps(result, indent=2))
    if write:
        click.echo(f"written: {save('heap', result)}", err=True)


def _pair(spec: Path, batch: int, bursts: int) -> dict[str, float]:
    processes = {
        keeps: subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PETRA_BENCH": json.dumps([str(spec), batch, keeps])},
        )
        for keeps in (False, True)
    }
    told: dict[bool, list[list[float]]] = {keeps: [] for keeps in processes}
    for _ in range(bursts + 1):
        for keeps, process in processes.items():
            assert process.stdin is not None
            assert process.stdout is not None
            print("go", file=process.stdin, flush=True)
            told[keeps].append(json.loads(process.stdout.readline()))
    for process in processes.values():
        process.communicate()
    pairs = list(zip(told[False][1:], told[True][1:], strict=True))
    return {
        "page faults a micro-batch": round(statistics.median(given[1] for given, _ in pairs)),
        "page faults a micro-batch, kept": round(statistics.median(kept[1] for _, kept in pairs)),
        "times faster": round(statistics.median(given[0] / kept[0] for given, kept in pairs), 3),
    }


def _work(spec: str, batch: int, keeps: bool) -> None:
    if keeps:
        keep_freed_memory()
    settings = ("method.name=reversible-backprop", "method.schedule=sequential", f"data.batch={batch}")
    ready = prepared(spec, *settings, f"data.options.train={batch * BURST}")
    fix_arithmetic(ready)
    runtime, data = runtime_of(ready), list(ready.opened.epoch(0))
    for at, _ in zip(count(step=BURST), sys.stdin, strict=False):
        faults, began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
        runtime.train(data, range(at, at + BURST), lambda _: None)
        seconds = time.perf_counter() - began
        print(json.dumps([seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults) / BURST]), flush=True)


if __name__ == "__main__":
    if "PETRA_BENCH" in os.environ:
        _work(*json.loads(os.environ["PETRA_BENCH"]))
    else:
        main()
