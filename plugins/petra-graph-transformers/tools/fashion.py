"""A reversible ViT on Fashion-MNIST with AdamW and with Muon: backpropagation, and PETRA with late gradients.

With k = 8, a micro-batch has 8 images instead of 64, so an update has the same number. The optimizer is AdamW unless a setting says Muon.

python tools/fashion.py
python tools/fashion.py --root FOLDER --epochs 10
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
SPEC = HERE / "specs" / "vit_fashion_mnist.toml"
RESULTS = HERE / "results" / "fashion.json"
ADAMW: dict[str, Any] = {"optimizer.name": "adamw", "optimizer.options.lr": 2e-3}
ONCE: dict[str, Any] = {"data.batch": 64, "method.accumulation": 1}
EIGHT: dict[str, Any] = ADAMW | {"data.batch": 8, "method.accumulation": 8}
BACKPROP = {"method.name": "backprop", "method.schedule": "sequential"}
SPIKE: dict[str, Any] = {"optimizer.delay.correction": "spike"}


def muon(rate: float) -> dict[str, Any]:
    return ONCE | {"optimizer.name": "muon", "optimizer.options.lr": rate}


SETTINGS: dict[str, tuple[dict[str, Any], int]] = {
    "backprop": (BACKPROP | ADAMW | ONCE, 1),
    "petra 1f1b": (ADAMW | ONCE, 1),
    "petra 1f1b, two processes": (ADAMW | ONCE, 2),
    "petra 1f1b, spike": (ADAMW | ONCE | SPIKE, 1),
    **{f"petra 1f1b, muon, lr {rate:g}": (muon(rate), 1) for rate in (2e-3, 4e-3, 8e-3)},
    **{f"backprop, muon, lr {rate:g}": (BACKPROP | muon(rate), 1) for rate in (2e-3, 4e-3, 8e-3)},
    "backprop, k = 8": (BACKPROP | EIGHT, 1),
    "petra 1f1b, k = 8, two processes": (EIGHT, 2),
}


@click.command()
@click.option("--root", default="/usr/share/datasets/fashion-mnist", show_default=True)
@click.option("--only", multiple=True, type=click.Choice(list(SETTINGS)), help="Settings; default: all.")
@click.option("--epochs", default=3, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=RESULTS, show_default=True)
def main(root: str, only: tuple[str, ...], epochs: int, output: Path) -> None:
    for name in only or SETTINGS:
        changes, processes = SETTINGS[name]
        where = {"data.options.root": root, "run.epochs": epochs, "run.directory": "runs/fashion"}
        run = petra_graph.train(SPEC, changes | where, processes=processes)
        test = run.summary["test"]
        row = {"setting": name, "processes": processes, "epochs": epochs, "changes": changes, "test": test}
        row["samples a second"] = run.summary["samples_per_second"]
        click.echo(f"{name:26} {100 * test['top1']:.2f} % of the test images, loss {test['loss']:.4f}")
        kept = json.loads(output.read_text())["rows"] if output.exists() else []
        rows = [*(one for one in kept if one["setting"] != name), row]
        setting = {key: value for key, value in environment().items() if key != "command"}
        now = datetime.now(UTC).isoformat(timespec="seconds")
        output.parent.mkdir(exist_ok=True)
        output.write_text(json.dumps({"date": now, "rows": rows, "environment": setting}, indent=1) + "\n")


if __name__ == "__main__":
    main()
