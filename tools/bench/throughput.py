"""Predicted against measured throughput of seven pipelines: by a profile, and by the data sheet.

Predicted is what `petra-graph plan` says, with and without `--profile`; measured is the training of the same stages,
loading included: the scheduler's in this process, and `run --processes 2` with its fill and drain.

Machines drift, so everything takes turns. In each round every training of a profile and every case has one burst of a few
micro-batches, and then two processes run; the round's own profile predicts the round's own measurements. A ratio of 1 is
exact, one above 1 promises too much. Listed are the median, the least and the largest over the rounds.

The seconds that an operation takes however small its tensors are (`OPERATION_SECONDS`) are measured beside: the seconds of
the quickstart's operations for one and for two samples, extrapolated to none, over the kernels that they launch.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import click
from attrs import frozen
from network import prepared, save

from petra_graph.compiler.prediction import Prediction
from petra_graph.planning.plan_spec import Planner
from petra_graph.profiling import BURST, TimedTraining, profile_of, repeat_epochs, start_trainings
from petra_graph.record.profile_files import write_profile
from petra_graph.runtime.loop import Scheduler
from petra_graph.training.prepare import Prepared, fix_arithmetic

QUICKSTART, REVNET, DEEP = "quickstart", "a quarter of RevNet18, CIFAR-10's size", "24 narrow reversible blocks"
SPECS = {
    QUICKSTART: ("specs/quickstart.toml", ()),
    REVNET: (
        "specs/revnet18_quarter_cifar10.toml",
        (
            "data.name=random",
            "data.options.shape=[3, 32, 32]",
            "data.options.classes=10",
            "data.options.train=4096",
            "data.batch=16",
        ),
    ),
    DEEP: ("tools/bench/deep_narrow_revnet.toml", ("data.batch=16",)),
}


@frozen(kw_only=True)
class Case:
    """A pipeline on a network."""

    network: str
    method: str
    schedule: str
    stages: str
    processes: int = 1

    @property
    def spec(self) -> str:
        """The path of its specification."""
        return SPECS[self.network][0]

    @property
    def overrides(self) -> tuple[str, ...]:
        """Its settings."""
        chosen = (
            f"method.name={self.method}",
            f"method.schedule={self.schedule}",
            f"partition.stages={self.stages}",
            "method.accumulation=1",
        )
        several = (f"partition.devices={self.processes}", "partition.device_type=cpu") if self.processes > 1 else ()
        return (*SPECS[self.network][1], *chosen, *several)

    def predicted(self, *more: str) -> Prediction:
        """Return what a plan predicts."""
        return Planner(self.spec, (*self.overrides, *more)).plan().prediction


CASES = (
    Case(network=QUICKSTART, method="petra", schedule="1f1b", stages="per-block"),
    Case(network=QUICKSTART, method="pipedream", schedule="lockstep", stages="per-block"),
    Case(network=REVNET, method="petra", schedule="lockstep", stages="per-block"),
    Case(network=REVNET, method="backprop", schedule="sequential", stages="1"),
    Case(network=REVNET, method="petra", schedule="1f1b", stages="2", processes=2),
    Case(network=DEEP, method="petra", schedule="1f1b", stages="per-block"),
    Case(network=DEEP, method="reversible-backprop", schedule="sequential", stages="1"),
)


@click.command()
@click.option("--rounds", default=7, show_default=True, help="Turns of everything.")
@click.option("--bursts", default=2, show_default=True, help="Of each profile's trainings and of each case, in a turn.")
@click.option("--micro-batches", default=48, show_default=True, help="Of a run on two processes.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(rounds: int, bursts: int, micro_batches: int, write: bool) -> None:
    profiled = {network: _Profiled(network) for network in SPECS}
    pipelines = {case: _Pipeline(case) for case in CASES if case.processes == 1}
    small = {samples: _Profiled(QUICKSTART, f"data.batch={samples}") for samples in (1, 2)}
    by_profile: dict[Case, list[float]] = defaultdict(list)
    by_sheet: dict[Case, list[float]] = defaultdict(list)
    launches: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds):
            _turn(bursts, (*profiled.values(), *small.values()), pipelines.values())
            paths = {network: one.written(Path(folder)) for network, one in profiled.items()}
            launches.append(_launch_seconds(small[1], small[2]))
            for case in CASES:
                if case in pipelines:
                    measured = pipelines[case].seconds_each()
                    count = 0
                else:
                    measured, count = _on_processes(case, micro_batches, folder), micro_batches
                for found, more in ((by_profile, (f"partition.profile={paths[case.network]}",)), (by_sheet, ())):
                    found[case].append(measured / _seconds_each(case.predicted(*more), count))
            for one in small.values():
                one.forget()
            click.echo(f"turn {turn + 1} of {rounds}", err=True)
    rows: list[dict[str, Any]] = [
        {
            "network": case.network, "method": case.method, "schedule": case.schedule, "stages": case.stages,
            "processes": case.processes,
            "predicted by a profile / measured": _spread(by_profile[case]),
            "predicted by the data sheet / measured": _spread(by_sheet[case]),
        }
        for case in CASES
    ]  # fmt: skip
    _show(rows)
    launch = _spread([1e6 * seconds for seconds in launches])
    click.echo(
        f"an operation with no samples: {launch['median']:.2f} us ({launch['least']:.2f} to {launch['largest']:.2f})"
    )
    if write:
        path = save(
            "throughput", {"rounds": rounds, "rows": rows, "microseconds of an operation with no samples": launch}
        )
        click.echo(f"written: {path}", err=True)


def _show(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        shown = "   ".join(
            f"{name} {values['median']:.3f} ({values['least']:.3f} to {values['largest']:.3f})"
            for name, values in (
                ("profile", row["predicted by a profile / measured"]),
                ("data sheet", row["predicted by the data sheet / measured"]),
            )
        )
        words = f"{row['network']:40} {row['method']:20} {row['schedule']:10} stages {row['stages']:9} processes {row['processes']}"
        click.echo(f"{words}   {shown}")


class _Profiled:
    """The trainings of one profile, in bursts."""

    def __init__(self, network: str, *more: str) -> None:
        spec, overrides = SPECS[network]
        self.network = network
        self.ready: Prepared = prepared(spec, *overrides, "partition.stages=per-block", "method.accumulation=1", *more)
        fix_arithmetic(self.ready)
        self.trainings: Sequence[TimedTraining] = start_trainings(self.ready)

    def burst(self) -> None:
        for training in self.trainings:
            training.burst(BURST)

    def forget(self) -> None:
        for training in self.trainings:
            training.forget()

    def written(self, folder: Path) -> Path:
        """Write the profile of this turn, and forget it."""
        path = folder / f"{list(SPECS).index(self.network)}.json"
        write_profile(path, profile_of(self.ready, self.trainings))
        self.forget()
        return path

    def operations(self) -> Iterator[tuple[float, int]]:
        """Yield the seconds of every timed operation and the kernels that it launches."""
        costs = self.ready.network.costs()
        for training in self.trainings[:3]:  # the fourth times an inversion with what follows it
            for node, seconds in training.by_operation(
                lambda watch, verb: statistics.median(watch.times[verb])
            ).items():
                for operation, taken in seconds.items():
                    yield taken, costs.nodes[node].work[operation].kernels


def _launch_seconds(one: _Profiled, two: _Profiled) -> float:
    (first, kernels), (second, _) = (map(sum, zip(*profiled.operations(), strict=True)) for profiled in (one, two))
    return (2 * first - second) / kernels


class _Pipeline:
    """A pipeline that trains in bursts: on one device, n micro-batches take n ticks, fill and drain included."""

    def __init__(self, case: Case) -> None:
        ready = prepared(case.spec, *case.overrides)
        fix_arithmetic(ready)
        self.runtime, self.data = Scheduler(ready.executors()), repeat_epochs(ready)
        self.count = BURST + max(program.depth for program in ready.programs)
        self.done = 0
        self.seconds: list[float] = []
        self.burst()
        self.seconds.clear()

    def burst(self) -> None:
        began = perf_counter()
        self.runtime.train(self.data, range(self.done, self.done + self.count), lambda _: None)
        self.seconds.append((perf_counter() - began) / self.count)
        self.done += self.count

    def seconds_each(self) -> float:
        """Return the seconds of a micro-batch in this turn, and forget them."""
        seconds, self.seconds = statistics.median(self.seconds), []
        return seconds


def _turn(bursts: int, profiles: Collection[_Profiled], pipelines: Collection[_Pipeline]) -> None:
    for _ in range(bursts):
        for profile in profiles:
            profile.burst()
        for pipeline in pipelines:
            pipeline.burst()


def _on_processes(case: Case, micro_batches: int, folder: str) -> float:
    """Return the seconds of a micro-batch of a run that begins and drains."""
    settings = (
        *case.overrides, "run.epochs=1", f"run.micro_batches={micro_batches}", "run.evaluation_batches=1",
        f"run.directory={folder}/runs",
    )  # fmt: skip
    command = [sys.executable, "-m", "petra_graph", "run", case.spec, "--processes", str(case.processes), "--json"]
    command += [part for setting in settings for part in ("--set", setting)]
    summary: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return float(summary["seconds"]["training"] / summary["micro_batches"])


def _seconds_each(made: Prediction, micro_batches: int) -> float:
    """Return the predicted seconds of a micro-batch; of so many between two drains, or in the steady state (0)."""
    timing = made.timing
    return timing.tick_seconds + (timing.overhead_seconds / micro_batches if micro_batches else 0.0)


def _spread(ratios: Sequence[float]) -> dict[str, float]:
    found = {"median": statistics.median(ratios), "least": min(ratios), "largest": max(ratios)}
    return {name: round(value, 4) for name, value in found.items()}


if __name__ == "__main__":
    main()
