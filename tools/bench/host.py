"""The host's cost of training: what a micro-batch costs beside its arithmetic, and so the limit on a GPU with small tensors.

    python tools/bench/host.py --rounds 9 --write

Tensors are so small that their arithmetic costs next to nothing. The same network trains as a plain module under autograd, in turns
with the runtime, in one invocation; read the ratios. Seconds are those of the processor, so that other programs count for little.

    seconds       CPU time of a micro-batch, plain = 1
    dispatched    operations that torch dispatches for a micro-batch
    calls         Python functions of petra_graph that an operation of a stage calls, F, B and U alike
    by segment    microseconds of the processor for a forward, a backward and an update of a stage, by what it holds
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import click
import torch
from network import PlainTraining, prepared, runtime_of, save
from torch.utils._python_dispatch import TorchDispatchMode

import petra_graph
from petra_graph.executor.stage import StageExecutor
from petra_graph.runtime.loop import Scheduler
from petra_graph.runtime.stage_io import MicroBatch

OURS = str(Path(petra_graph.__file__).parent)
CONFIGURATIONS: Mapping[str, Sequence[str]] = {
    "backprop": ("method.name=backprop", "method.schedule=sequential"),
    "petra": ("method.name=petra", "method.schedule=1f1b"),
    "petra in two stages": ("method.name=petra", "method.schedule=1f1b", "partition.stages=2"),
}


@click.command()
@click.option("--spec", default="specs/quickstart.toml", show_default=True)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="An override of the specification.")
@click.option("--batch", default=2, show_default=True, help="Samples in a micro-batch.")
@click.option("--micro-batches", default=20, show_default=True, help="In one measurement.")
@click.option("--rounds", default=9, show_default=True, help="Measurements of each; their median ratio counts.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(spec: str, overrides: Sequence[str], batch: int, micro_batches: int, rounds: int, write: bool) -> None:
    torch.set_num_threads(1)
    common = [f"data.batch={batch}", "method.accumulation=1", *overrides]
    ready = {name: prepared(spec, *common, *chosen) for name, chosen in CONFIGURATIONS.items()}
    runtimes = {name: runtime_of(one) for name, one in ready.items()}
    first = ready["backprop"]
    data = [batch for _, batch in zip(range(micro_batches), first.opened.epoch(0), strict=False)]
    plain = PlainTraining(first, runtimes["backprop"], data, torch.device("cpu"))
    runs: dict[str, Callable[[], None]] = {"plain": plain.train, "checkpointed": plain.train_checkpointed}
    runs |= {name: trainer(runtime, data) for name, runtime in runtimes.items()}
    for action in runs.values():
        action()
        action()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, action in runs.items():
            began = time.process_time()
            action()
            seconds[name].append(time.process_time() - began)
    result = {
        "spec": Path(spec).name,
        "batch": batch,
        "rounds": rounds,
        "stages": {name: len(runtime.executors) for name, runtime in runtimes.items()},
        "seconds of a micro-batch, plain = 1": {
            name: round(statistics.median(a / b for a, b in zip(own, seconds["plain"], strict=True)), 2)
            for name, own in seconds.items()
        },
        "dispatched operations of a micro-batch": {
            name: round(dispatched(action) / micro_batches) for name, action in runs.items()
        },
        "calls of an operation": {
            name: round(calls_of_ours(trainer(runtime, data)) / operations(runtime, micro_batches), 1)
            for name, runtime in runtimes.items()
        },
        "by segment, microseconds": {name: by_segment(runtime, data) for name, runtime in runtimes.items()},
        "plain, milliseconds of a micro-batch": round(1e3 * statistics.median(seconds["plain"]) / micro_batches, 3),
    }
    click.echo(json.dumps(result, indent=2))
    if write:
        click.echo(f"written: {save('host', result)}", err=True)


def trainer(runtime: Scheduler, data: Sequence[MicroBatch]) -> Callable[[], None]:
    return lambda: runtime.train(data, range(len(data)), lambda _: None)


def operations(runtime: Scheduler, micro_batches: int) -> int:
    """Return the forwards, backwards and updates of all stages; an update comes after every micro-batch."""
    return 3 * len(runtime.executors) * micro_batches


class Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what torch dispatches."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def dispatched(action: Callable[[], None]) -> int:
    with Dispatched() as counting:
        action()
    return int(counting.count)


def calls_of_ours(action: Callable[[], None]) -> int:
    """Count the calls of Python functions of petra_graph; a generator counts each time that it continues."""
    count = 0

    def observe(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(OURS)

    sys.setprofile(observe)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def by_segment(runtime: Scheduler, data: Sequence[MicroBatch]) -> Mapping[str, Mapping[str, float]]:
    """Return the processor's microseconds for an operation of a stage's executor, by the kinds of the stage's segments."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for executor in runtime.executors:
        kinds = " + ".join(dict.fromkeys(segment.kind for segment in executor.program.segments))
        for operation in ("forward", "backward", "update"):
            _timed(executor, operation, found[kinds][operation])
    runtime.train(data, range(len(data)), lambda _: None)
    for executor in runtime.executors:
        for operation in ("forward", "backward", "update"):
            delattr(executor, operation)
    return {
        kinds: {name: round(1e6 * statistics.median(own), 1) for name, own in times.items()}
        for kinds, times in found.items()
    }


def _timed(executor: StageExecutor, operation: str, times: list[float]) -> None:
    """Time a method of one executor until it is deleted there."""
    method = getattr(executor, operation)

    def timed(*args: Any) -> Any:
        began = time.process_time()
        done = method(*args)
        times.append(time.process_time() - began)
        return done

    setattr(executor, operation, timed)


if __name__ == "__main__":
    main()
