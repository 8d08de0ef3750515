"""The paper's table 5, simulated: how much faster stages run on a device each than one after another.

The nodes of RevNet18 and RevNet34 at CIFAR-10's size are timed on this one device; the time model then gives `petra`
against `reversible-backprop` on 10 and on 18 such devices, every node a stage as in the paper, and with stages cut by cost
on the same and on fewer devices. The paper measured 3.0 and 2.4, its stages not being balanced. Links are an NVLink's;
they hardly matter here, computation on a CPU being slow.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from network import save

from petra_graph.planning.plan_spec import Planner
from petra_graph.profiling.node_profile import profile
from petra_graph.record.profile_files import write_profile

NETWORKS = {"RevNet18": ("specs/revnet18_cifar10.toml", 10, 3.0), "RevNet34": ("specs/revnet34_cifar10.toml", 18, 2.4)}
FEWER = (2, 3, 4, 6, 8)


@click.command()
@click.option("--batch", default=32, show_default=True, help="Images in a micro-batch; the paper has 256.")
@click.option("--micro-batches", default=3, show_default=True, help="Timed.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(batch: int, micro_batches: int, write: bool) -> None:
    rows: list[dict[str, Any]] = []
    for name, (spec, devices, paper) in NETWORKS.items():
        overrides = (
            "data.name=random",
            "data.options.shape=[3, 32, 32]",
            "data.options.classes=10",
            "data.options.train=2048",
            f"data.batch={batch}",
            "method.accumulation=1",
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "profile.json"
            write_profile(path, profile(spec, overrides, micro_batches))
            for row in _rows(spec, (*overrides, f"partition.profile={path}"), devices):
                rows.append({"network": name, **row, "paper": paper if row["stages"] == "per-block" else None})
                click.echo(_line(rows[-1]))
    if write:
        click.echo(f"written: {save('table5', {'batch': batch, 'rows': rows})}", err=True)


def _rows(spec: str, overrides: tuple[str, ...], devices: int) -> Iterator[dict[str, Any]]:
    cuts = [("per-block", devices), (str(devices), devices), *((str(fewer), fewer) for fewer in FEWER)]
    for stages, count in cuts:
        for schedule in ("lockstep", "1f1b", "auto"):
            chosen = (f"partition.stages={stages}", f"partition.devices={count}", f"method.schedule={schedule}")
            planner = Planner(spec, (*overrides, *chosen, "partition.device_type=cpu", *_nvlink()))
            prediction = planner.plan().prediction
            yield {
                "stages": stages,
                "devices": count,
                "schedule": schedule,
                "speed-up": round(prediction.speedup, 3),
                "bubble": round(prediction.timing.bubble_fraction, 3),
                "staleness of the first stage": prediction.programs[0].depth - 1,
            }


def _nvlink() -> tuple[str, str]:
    return "partition.link_latency=1e-5", "partition.link_bandwidth=3e11"


def _line(row: dict[str, Any]) -> str:
    beside = f"  (the paper measured {row['paper']})" if row["paper"] and row["schedule"] == "lockstep" else ""
    return (
        f"{row['network']:9} stages {row['stages']:9} on {row['devices']:2} devices, {row['schedule']:8}: speed-up "
        f"{row['speed-up']:.2f}, bubble {row['bubble']:.0%}, staleness {row['staleness of the first stage']}{beside}"
    )


if __name__ == "__main__":
    main()
