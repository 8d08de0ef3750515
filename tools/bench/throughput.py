"""Predicted against measured throughput, of one process and of two: times of nodes are profiled, then pipelines are run.

Predicted is what `petra-graph plan --profile` says; measured is the scheduler's training of the same stages, loading
included, and `run --processes 2`, an epoch with its fill and drain. Machines drift, so all that is timed in one process
takes turns, a few micro-batches each; two processes come afterwards. Read the ratios, of which 1 is exact.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from network import prepared, save

from petra_graph.compiler.memory_and_time import Prediction
from petra_graph.planning.plan import Planner
from petra_graph.record.profile import write_profile
from petra_graph.runtime.scheduler.scheduler import Scheduler
from petra_graph.training.prepare import fix_arithmetic
from petra_graph.training.profile import BURST, endless, profile_of, timed_trainings

NETWORKS = {
    "quickstart": ("specs/quickstart.toml", ()),
    "a quarter of RevNet18, CIFAR-10's size": (
        "specs/revnet18_quarter_cifar10.toml",
        (
            "data.name=random",
            "data.options.shape=[3, 32, 32]",
            "data.options.classes=10",
            "data.options.train=4096",
            "data.batch=16",
        ),
    ),
}
TWO = ("petra", "1f1b", "2 on 2 processes")
CASES = (
    ("petra", "1f1b", "per-block"),
    ("petra", "lockstep", "per-block"),
    ("petra", "1f1b", "3"),
    ("dsp", "lockstep", "per-block"),
    ("delayed-reconstructed", "lockstep", "per-block"),
    ("reversible-backprop", "sequential", "1"),
    ("backprop", "sequential", "1"),
)


@click.command()
@click.option(
    "--bursts", default=20, show_default=True, help="Of every training of the profile and of every case, in turns."
)
@click.option("--rounds", default=3, show_default=True, help="Of two processes.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(bursts: int, rounds: int, write: bool) -> None:
    rows: list[dict[str, Any]] = []
    for network, (spec, overrides) in NETWORKS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "profile.json"
            ready = prepared(spec, *overrides, "partition.stages=per-block", "method.accumulation=1")
            fix_arithmetic(ready)
            timed, cases = timed_trainings(ready), {case: _Case(spec, overrides, case) for case in CASES}
            for _ in range(bursts):
                for training in timed:
                    training.burst(BURST)
                for case in cases.values():
                    case.burst()
            write_profile(path, profile_of(ready, timed))
            found = {case: case_of.ratio(path) for case, case_of in cases.items()}
            profiled = (*overrides, f"partition.profile={path}")
            two = [_on_two_processes(spec, profiled, folder) for _ in range(rounds)]
            found[TWO] = statistics.median(two) if two else float("nan")
        for (method, schedule, stages), ratio in found.items():
            row = {"network": network, "method": method, "schedule": schedule, "stages": stages}
            rows.append({**row, "predicted / measured": round(ratio, 4)})
            click.echo(f"{network:40} {method:22} {schedule:10} stages {stages:16} predicted / measured {ratio:.3f}")
    one = [row["predicted / measured"] for row in rows if row["stages"] != TWO[2]]
    worst = max(abs(ratio - 1) for ratio in one)
    click.echo(f"one process, largest deviation: {worst:.1%}")
    if write:
        click.echo(f"written: {save('throughput', {'largest deviation, one process': worst, 'rows': rows})}", err=True)


class _Case:
    """A pipeline that trains in bursts: on one device, n micro-batches take n ticks, fill and drain included."""

    def __init__(self, spec: str, overrides: tuple[str, ...], case: tuple[str, str, str]) -> None:
        method, schedule, stages = case
        chosen = (f"method.name={method}", f"method.schedule={schedule}", f"partition.stages={stages}")
        self.spec, self.overrides = spec, (*overrides, *chosen, "method.accumulation=1")
        ready = prepared(spec, *self.overrides)
        fix_arithmetic(ready)
        self.runtime, self.data = Scheduler(ready.executors()), endless(ready)
        self.count = BURST + max(program.depth for program in ready.programs)
        self.done = 0
        self.seconds: list[float] = []
        self.burst()
        self.seconds.clear()

    def burst(self) -> None:
        began = time.perf_counter()
        self.runtime.train(self.data, range(self.done, self.done + self.count), lambda _: None)
        self.seconds.append((time.perf_counter() - began) / self.count)
        self.done += self.count

    def ratio(self, profile: Path) -> float:
        """Return predicted over measured throughput."""
        made = _predicted(self.spec, (*self.overrides, f"partition.profile={profile}"))
        return float(statistics.median(self.seconds) / made.timing.tick_seconds)


def _on_two_processes(spec: str, overrides: tuple[str, ...], folder: str) -> float:
    """Return predicted over measured samples a second of an epoch on two processes."""
    chosen = (
        "method.name=petra", "method.schedule=1f1b", "method.accumulation=1", "partition.stages=2", "partition.devices=2",
        "partition.device_type=cpu", "run.epochs=1", f"run.directory={folder}/runs",
    )  # fmt: skip
    settings = (*overrides, *chosen)
    made = _predicted(spec, settings)
    command = [sys.executable, "-m", "petra_graph", "run", spec, "--processes", "2", "--json"]
    command += [part for setting in settings for part in ("--set", setting)]
    summary = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    seconds = made.timing.overhead_seconds + summary["micro_batches"] * made.timing.tick_seconds
    samples = summary["micro_batches"] * made.inputs.costs.micro_batch
    return float(samples / seconds / summary["samples_per_second"])


def _predicted(spec: str, overrides: tuple[str, ...]) -> Prediction:
    """Return what a plan predicts."""
    return Planner(spec, overrides).plan().prediction


if __name__ == "__main__":
    main()
