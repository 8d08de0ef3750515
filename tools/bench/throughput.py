"""Predicted against measured throughput: by a profile, and by the data sheet. 1 is exact, more promises too much.

    python tools/bench/throughput.py --write

Everything goes through the command line: `profile`, `plan` with and without it, and `run`. Machines drift, so each round takes its own
profiles and measures right after them. Listed are the median, the least and the largest ratio over the rounds.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import click
from network import save

SPECS = {
    "quickstart": ["specs/quickstart.toml"],
    "a quarter of RevNet18": [
        "specs/revnet18_quarter_cifar10.toml", "--set", "data.name=random", "--set", "data.batch=16",
        "--set", "data.options={ shape = [3, 32, 32], classes = 10, train = 4096 }",
    ],
    "24 narrow reversible blocks": ["tools/bench/deep_narrow_revnet.toml", "--set", "data.batch=16"],
}  # fmt: skip
CASES = (
    ("quickstart", "petra", "1f1b", "per-block", 1),
    ("quickstart", "pipedream", "lockstep", "per-block", 1),
    ("a quarter of RevNet18", "petra", "lockstep", "per-block", 1),
    ("a quarter of RevNet18", "backprop", "sequential", "1", 1),
    ("a quarter of RevNet18", "petra", "1f1b", "2", 2),
    ("24 narrow reversible blocks", "petra", "1f1b", "per-block", 1),
    ("24 narrow reversible blocks", "reversible-backprop", "sequential", "1", 1),
)
"""Network, method, schedule, stages, processes."""


@click.command()
@click.option("--rounds", default=7, show_default=True)
@click.option("--micro-batches", default=48, show_default=True, help="Of a run, its fill and drain included.")
@click.option("--only", default="", help="Only networks with this in their names.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(rounds: int, micro_batches: int, only: str, write: bool) -> None:
    cases = [case for case in CASES if only in case[0]]
    ratios: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds):
            profiles = {network: f"{folder}/{at}.json" for at, network in enumerate({case[0]: None for case in cases})}
            for network, file in profiles.items():
                called("profile", *SPECS[network], "--output", file)
            for case in cases:
                network, method, schedule, stages, processes = case
                words = [*SPECS[network], "--set", f"method={{ name = '{method}', schedule = '{schedule}' }}"]
                words += ["--set", f"partition.stages={stages}", "--json"]
                on = ["--set", f"partition.devices={processes}", "--set", "partition.device_type=cpu"]
                settings = ("epochs=1", f"micro_batches={micro_batches}", "evaluation_batches=1", f"directory={folder}")
                run = [word for text in settings for word in ("--set", f"run.{text}")]
                done = called("run", *words, *run, *(["--processes", str(processes)] if processes > 1 else []))
                for label, more in (
                    ("profile", ["--set", f"partition.profile={profiles[network]}"]),
                    ("data sheet", []),
                ):
                    timing = called("plan", *words, *on, *more)["timing"]
                    predicted = timing["tick_seconds"] + timing["overhead_seconds"] / micro_batches
                    ratios[*case, label].append(done["seconds"]["training"] / done["micro_batches"] / predicted)
            click.echo(f"round {turn + 1} of {rounds}", err=True)
    rows: list[dict[str, Any]] = [{"case": case, **spread(found)} for case, found in ratios.items()]
    for row in rows:
        click.echo(", ".join(map(str, row["case"])) + f": {row['median']} ({row['least']} to {row['largest']})")
    if write:
        click.echo(f"written: {save('throughput', {'rounds': rounds, 'rows': rows})}", err=True)


def called(*words: str) -> Any:
    """Call petra-graph, and return the JSON that it printed, if any."""
    command = [sys.executable, "-m", "petra_graph", *words]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(said) if "--json" in words else None


def spread(ratios: Sequence[float]) -> dict[str, float]:
    found = {"median": statistics.median(ratios), "least": min(ratios), "largest": max(ratios)}
    return {name: round(value, 4) for name, value in found.items()}


if __name__ == "__main__":
    main()
