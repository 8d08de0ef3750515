"""A reversible ViT on Fashion-MNIST: backpropagation in one process, PETRA in one and in two.

With k = 8, a micro-batch has 8 images in place of 64, so that an update has as many.

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
ONCE: dict[str, Any] = {"data.batch": 64, "method.accumulation": 1}
EIGHT: dict[str, Any] = {"data.batch": 8, "method.accumulation": 8}
BACKPROP = {"method.name": "backprop", "method.schedule": "sequential"}
SETTINGS: dict[str, tuple[dict[str, Any], int]] = {
    "backprop": (BACKPROP | ONCE, 1),
    "petra 1f1b": (ONCE, 1),
    "petra 1f1b, two processes": (ONCE, 2),
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
