"""Predicted against measured throughput, one process: times of nodes are profiled, then whole pipelines are run.

Predicted is what `petra-graph plan --profile` says; measured is the inline runtime's training of the same stages, loading
included. Machines drift, so profiles and runs take turns; read the ratios, of which 1 is exact.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import click
from network import prepared, save

from petra_graph.record.profile import write_profile
from petra_graph.runtime.inline import InlineRuntime
from petra_graph.session.plan import planned
from petra_graph.session.prepare import Prepared, fix_arithmetic
from petra_graph.session.profile import endless, profile

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
@click.option("--rounds", default=3, show_default=True, help="Profiles; each is followed by a run of every case.")
@click.option("--micro-batches", default=30, show_default=True, help="Timed in every profile and run.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(rounds: int, micro_batches: int, write: bool) -> None:
    rows: list[dict[str, Any]] = []
    for network, (spec, overrides) in NETWORKS.items():
        found: dict[tuple[str, str, str], list[float]] = {case: [] for case in CASES}
        for _ in range(rounds):
            for case, ratio in _round(spec, overrides, micro_batches).items():
                found[case].append(ratio)
        for (method, schedule, stages), ratios in found.items():
            row = {"network": network, "method": method, "schedule": schedule, "stages": stages}
            rows.append({**row, "predicted / measured": ratios, "median": statistics.median(ratios)})
            click.echo(
                f"{network:40} {method:22} {schedule:10} stages {stages:9} predicted / measured "
                f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
            )
    worst = max(abs(row["median"] - 1) for row in rows)
    click.echo(f"largest deviation of a median: {worst:.1%}")
    if write:
        click.echo(f"written: {save('throughput', {'largest deviation': worst, 'rows': rows})}", err=True)


def _round(spec: str, overrides: tuple[str, ...], micro_batches: int) -> dict[tuple[str, str, str], float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        write_profile(path, profile(spec, overrides, micro_batches))
        return {case: _ratio(spec, (*overrides, f"partition.profile={path}"), case, micro_batches) for case in CASES}


def _ratio(spec: str, overrides: tuple[str, ...], case: tuple[str, str, str], micro_batches: int) -> float:
    method, schedule, stages = case
    chosen = (f"method.name={method}", f"method.schedule={schedule}", f"partition.stages={stages}")
    ready = prepared(spec, *overrides, *chosen, "method.accumulation=1")
    fix_arithmetic(ready)
    predicted = planned(ready.spec, ready.compiled, ready.costs).prediction.timing.tick_seconds
    return _seconds(ready, micro_batches) / predicted


def _seconds(ready: Prepared, micro_batches: int) -> float:
    """Return what a micro-batch takes, once the pipeline is full."""
    warm = max(program.depth for program in ready.compiled.programs) + 3
    ended: list[float] = []
    with closing(endless(ready)) as data:
        runtime = InlineRuntime(ready.executors())
        runtime.train(data, range(warm + micro_batches), lambda _: ended.append(time.perf_counter()))
    # The head's results come once a tick until the data ends, when the pipeline drains.
    last = len(ended) - max(program.depth for program in ready.compiled.programs)
    return (ended[last - 1] - ended[warm - 1]) / (last - warm) if last > warm else float("nan")


if __name__ == "__main__":
    main()
