"""A reversible GPT on tinyshakespeare: backpropagation beside PETRA, by schedule and accumulation.

Every setting sees the same number of characters. With accumulation 8, a micro-batch has 2 windows in place of 12, so that an update
has 16. Each setting is trained once for each learning rate; the result is written after each training, beside those that are
there for other settings.

    python tools/shakespeare.py input.txt
    python tools/shakespeare.py input.txt --only "petra lockstep" --lr 2e-3
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
SPEC = HERE / "specs" / "gpt_tinyshakespeare.toml"
RESULTS = HERE / "results" / "shakespeare.json"
ONCE = {"data.batch": 12, "method.accumulation": 1}
EIGHT = {"data.batch": 2, "method.accumulation": 8}
SETTINGS: dict[str, dict[str, Any]] = {
    "backprop": {"method.name": "backprop", "method.schedule": "sequential", **ONCE},
    "petra 1f1b": {"method.name": "petra", "method.schedule": "1f1b", **ONCE},
    "petra lockstep": {"method.name": "petra", "method.schedule": "lockstep", **ONCE},
    "backprop, k = 8": {"method.name": "backprop", "method.schedule": "sequential", **EIGHT},
    "petra 1f1b, k = 8": {"method.name": "petra", "method.schedule": "1f1b", **EIGHT},
    "petra lockstep, k = 8": {"method.name": "petra", "method.schedule": "lockstep", **EIGHT},
}


@click.command()
@click.argument("root", type=click.Path(dir_okay=False, resolve_path=True))
@click.option("--only", multiple=True, type=click.Choice(list(SETTINGS)), help="Settings; default: all.")
@click.option("--optimizer", default="adamw", show_default=True, type=click.Choice(["adamw", "muon"]))
@click.option("--lr", "rates", multiple=True, type=float, default=(1e-3, 3e-3), show_default=True)
@click.option("--warmup", default=0.2, show_default=True, help="Epochs of warm-up.")
@click.option("--embedding-std", default=1.0, show_default=True, help="Of the initial vectors.")
@click.option("--epochs", default=4, show_default=True, help="Of 6,000 windows each.")
@click.option("--output", type=click.Path(path_type=Path), default=RESULTS, show_default=True)
def main(
    root: str,
    only: tuple[str, ...],
    optimizer: str,
    rates: tuple[float, ...],
    warmup: float,
    embedding_std: float,
    epochs: int,
    output: Path,
) -> None:
    for setting in only or SETTINGS:
        for rate in rates:
            changes = {
                **SETTINGS[setting],
                "optimizer.name": optimizer,
                "optimizer.options.lr": rate,
                "lr_schedule.warmup_epochs": warmup,
                "architecture.options.embedding_std": embedding_std,
                "run.epochs": epochs,
            }
            row = {"setting": setting, "lr": rate, **trained(changes, root)}
            click.echo(f"{setting:22} lr {rate:g}: {row['test loss']:.4f} nats, {row['bits']:.4f} bits a character")
            keep(row, output)


def trained(changes: dict[str, Any], root: str) -> dict[str, Any]:
    """Train once, and return what is reported."""
    from petra_graph.kinds.listener import Listener

    where = {"data.options.root": root, "run.directory": "runs/shakespeare"}
    run = petra_graph.train(SPEC, changes | where, listener=Listener())
    summary = run.summary
    if summary["status"] != "done":
        raise click.ClickException(f"{run.directory} was {summary['status']}")
    samples = (run.directory / "samples.txt").read_text().split("--- epoch ")
    return {
        "changes": changes,
        "test loss": summary["test"]["loss"],
        "bits": summary["test"]["bits"],
        "top1": summary["test"]["top1"],
        "train loss of the last epoch": run.metrics("train/loss")[-1][1],
        "test loss by micro-batch": run.metrics("test/loss"),
        "updates": summary["updates"],
        "samples a second": summary["samples_per_second"],
        "sample": samples[-1],
    }


def keep(row: dict[str, Any], output: Path) -> None:
    """Put a row in place of one of the same setting and learning rate."""
    kept = json.loads(output.read_text())["rows"] if output.exists() else []
    rows = [
        one
        for one in kept
        if (one["setting"], one["lr"], one["changes"]) != (row["setting"], row["lr"], row["changes"])
    ]
    setting = {key: value for key, value in environment().items() if key != "command"}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    output.parent.mkdir(exist_ok=True)
    text = json.dumps({"date": now, "rows": [*rows, row], "environment": setting}, indent=1, ensure_ascii=False)
    output.write_text(text + "\n")


if __name__ == "__main__":
    main()
