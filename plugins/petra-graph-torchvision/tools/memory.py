"""The memory that networks need for training, as `petra-graph plan` counts it: as they are, and with reversible blocks.

python plugins/petra-graph-torchvision/tools/memory.py
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

import petra_graph
from petra_graph.record.run_directory import environment

HERE = Path(__file__).parent.parent
SPEC = HERE / "specs" / "resnet18_fashion_mnist.toml"
RESULTS = HERE / "results" / "memory.json"
SETTINGS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("torchvision", "backprop", {"partition.stages": 1}),
    ("torchvision-dr2net", "reversible-backprop", {"partition.stages": 1}),
    ("torchvision", "petra", {"method.schedule": "1f1b", "partition.stages": 4}),
    ("torchvision-dr2net", "petra", {"method.schedule": "1f1b", "partition.stages": 4}),
)


@click.command()
@click.option("--network", "networks", multiple=True, default=("resnet50", "resnet152", "vit_b_16"), show_default=True)
@click.option("--batch", default=32, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=RESULTS, show_default=True)
def main(networks: tuple[str, ...], batch: int, output: Path) -> None:
    data = {"name": "random", "batch": batch, "options": {"shape": [3, 224, 224], "classes": 1000}}
    rows = []
    for network in networks:
        for architecture, method, changes in SETTINGS:
            whole: dict[str, Any] = {
                "architecture": {"name": architecture, "options": {"network": network}},
                "method": {"name": method},
                "data": data,
            }
            stages = petra_graph.plan(SPEC, whole | changes).document["stages"]
            held = [stage["bytes"]["total"] for stage in stages]
            rows.append({"network": network, "architecture": architecture, "method": method, "bytes of stages": held})
            click.echo(f"{network:10} {architecture:20} {method:20} {len(held)} stages {sum(held) / 2**30:7.2f} GiB")
    setting = {key: value for key, value in environment().items() if key != "command"}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    output.write_text(json.dumps({"date": now, "batch": batch, "rows": rows, "environment": setting}, indent=1) + "\n")


if __name__ == "__main__":
    main()
