"""Training with compiled blocks (`run.compile`) beside the same with blocks as written.

    inline           both train in one process, in turns; processor seconds of a micro-batch, which other programs disturb less
    two processes    whole runs in turns; samples a second, which count neither compiling nor any other part of the start

The median of the rounds' ratios counts. Networks: the RevNet of specs/quickstart.toml, whose convolutions a library computes either way, and
a chain of MLPs with GELU.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import torch
from network import save

from petra_graph.profiling.node_profile import repeat_epochs
from petra_graph.runtime.scheduler.scheduler import Scheduler
from petra_graph.training.compile_ahead import compile_ahead
from petra_graph.training.prepared_run import prepare
from petra_graph.training.start_reporter import StartReporter

ROOT = Path(__file__).parents[2]
MLP = """\
name = "mlp"
[[graph.node]]
name = "stem"
block = "linear-stem"
options = { features = 256 }
[[graph.node]]
name = "rev"
block = "rev-mlp"
repeat = 4
options = { hidden = 1024, activation = "gelu" }
[[graph.node]]
name = "head"
block = "pool-linear"
options = { outputs = 10 }
[optimizer]
options = { lr = 0.01 }
[data]
name = "digits"
batch = 128
"""


@contextmanager
def networks() -> Iterator[dict[str, Path]]:
    """Yield specifications, by name."""
    with tempfile.TemporaryDirectory() as folder:
        mlp = Path(folder, "mlp.toml")
        mlp.write_text(MLP)
        yield {"RevNet of quickstart": ROOT / "specs" / "quickstart.toml", "4 MLPs, 256 and 1024 features": mlp}


@click.command()
@click.option("--rounds", default=9, show_default=True)
@click.option("--micro-batches", default=20, show_default=True, help="In a round, inline.")
@click.option("--runs", default=3, show_default=True, help="Rounds on two processes; 0: none.")
@click.option("--epochs", default=4, show_default=True, help="Of a run on two processes.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(rounds: int, micro_batches: int, runs: int, epochs: int, write: bool) -> None:
    torch.set_num_threads(1)
    result: dict[str, dict[str, Any]] = {}
    with networks() as specs, tempfile.TemporaryDirectory() as directory:
        for name, spec in specs.items():
            result[name] = {"inline": _inline(spec, rounds, micro_batches)}
            click.echo(json.dumps({name: result[name]}), err=True)
        for name, spec in specs.items() if runs else ():
            pairs = [
                [_samples_a_second(spec, epochs, directory, compiled=compiled) for compiled in (False, True)]
                for _ in range(runs)
            ]
            result[name]["two processes"] = {
                "times as fast": _spread([compiled / written for written, compiled in pairs]),
                "samples a second, as written and compiled": pairs,
            }
            click.echo(json.dumps({name: result[name]}), err=True)
    click.echo(json.dumps(result, indent=2))
    if write:
        setting = {"threads": 1, "rounds": rounds, "micro_batches": micro_batches, "runs": runs, "epochs": epochs}
        click.echo(f"written: {save('compiled', {**setting, 'networks': result})}", err=True)


def _inline(spec: Path, rounds: int, micro_batches: int) -> dict[str, Any]:
    ways = {}
    for name, compiled in (("as written", False), ("compiled", True)):
        ready = prepare(str(spec), [f"run.compile={str(compiled).lower()}"])
        began = time.perf_counter()
        if compiled:
            compile_ahead(ready, ready.programs, StartReporter())
        ways[name] = Scheduler(ready.executors()), repeat_epochs(ready)
        compiling = time.perf_counter() - began
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for at in range(rounds + 1):  # the first one warms up
        for name, (scheduler, data) in ways.items():
            began = time.process_time()
            scheduler.train(data, range(at * micro_batches, (at + 1) * micro_batches), lambda _: None)
            taken[name].append((time.process_time() - began) / micro_batches)
    written, found = (seconds[1:] for seconds in taken.values())
    return {
        "times as fast": _spread([one / other for one, other in zip(written, found, strict=True)]),
        "milliseconds of a micro-batch": {
            name: round(1e3 * statistics.median(seconds[1:]), 2) for name, seconds in taken.items()
        },
        "seconds until it is compiled": round(compiling, 1),
    }


def _spread(ratios: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(ratios), 3),
        "least": round(min(ratios), 3),
        "largest": round(max(ratios), 3),
    }


def _samples_a_second(spec: Path, epochs: int, directory: str, *, compiled: bool) -> float:
    command = [sys.executable, "-m", "petra_graph", "run", str(spec), "--json", "--processes", "2"]
    settings = [f"run.epochs={epochs}", f"run.evaluate_every={epochs}", f"run.directory={directory}"]
    settings.append(f"run.compile={str(compiled).lower()}")
    more = [word for setting in settings for word in ("--set", setting)]
    ended = subprocess.run([*command, *more], capture_output=True, text=True, check=True)
    found: float = json.loads(ended.stdout)["samples_per_second"]
    return found


if __name__ == "__main__":
    main()
