"""The memory that `petra-graph plan` predicts for the GPT, beside that which its stages need, for two lengths of context.

Measured as in the repository's tools/bench: the bytes of tensors that are alive, each stage as if on a device of its own. It needs
a checkout of petra-graph around this package.

    python tools/gpt_memory.py input.txt
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import torch

import petra_graph
from petra_graph.record.run_directory import environment
from petra_graph.training.prepared_run import Prepared, prepare

HERE = Path(__file__).parent.parent
SPEC = HERE / "specs" / "gpt_tinyshakespeare.toml"
RESULTS = HERE / "results" / "gpt_memory.json"
METHODS = (("petra", "1f1b"), ("petra", "lockstep"), ("reversible-backprop", "sequential"), ("backprop", "sequential"))
AFTER_FULL = 3
"""Micro-batches after the pipeline is full."""


@click.command()
@click.argument("root", type=click.Path(dir_okay=False, resolve_path=True))
@click.option("--context", "contexts", multiple=True, default=(64, 512), show_default=True)
@click.option("--batch", default=12, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=RESULTS, show_default=True)
def main(root: str, contexts: tuple[int, ...], batch: int, output: Path) -> None:
    torch.set_num_threads(1)
    rows = []
    for context in contexts:
        for method, schedule in METHODS:
            changes = {
                "data.options.root": root,
                "data.options.context": context,
                "data.batch": batch,
                "optimizer.name": "adamw",
                "method.accumulation": 1,
                "method.name": method,
                "method.schedule": schedule,
            }
            stages = petra_graph.plan(SPEC, changes).document["stages"]
            predicted = [stage["bytes"]["total"] for stage in stages]
            measured = peaks(prepare(str(SPEC), [f"{key}={value}" for key, value in changes.items()]))
            ratios = [round(one / other, 4) for one, other in zip(predicted, measured, strict=True)]
            total = sum(predicted) / sum(measured)
            rows.append(
                {
                    "context": context,
                    "batch": batch,
                    "method": method,
                    "schedule": schedule,
                    "predicted": predicted,
                    "measured": measured,
                    "predicted / measured": {"stages": ratios, "all": round(total, 4)},
                }
            )
            click.echo(
                f"context {context:4} {method:20} {schedule:10} {sum(measured) / 2**20:7.1f} MiB measured, "
                f"predicted / measured {total:.4f}, of stages {min(ratios):.4f} to {max(ratios):.4f}"
            )
    setting = {key: value for key, value in environment().items() if key != "command"}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    output.parent.mkdir(exist_ok=True)
    output.write_text(json.dumps({"date": now, "rows": rows, "environment": setting}, indent=1) + "\n")


def peaks(ready: Prepared) -> list[int]:
    """Train a little, and return the most bytes that each stage held."""
    sys.path.insert(0, str(HERE.parent.parent / "tools" / "bench"))
    from network import stage_peaks

    micro_batches = 2 * max(program.depth for program in ready.programs) + AFTER_FULL
    found: Any = stage_peaks(ready, micro_batches)
    return list(found)


if __name__ == "__main__":
    main()
