"""Curves of finished runs, side by side: one JSON file and one picture.

python -m tools.studies.curves RUN... --output tools/studies/results/cifar10-ten-epochs
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from tools.studies.drawing import COLOURS, DASHES, panels
from tools.studies.study import series


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Path of both files, without ending.")
@click.option("--title", default="")
def main(runs: tuple[Path, ...], output: Path, title: str) -> None:
    curves = [_curve(run) for run in runs]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".json").write_text(json.dumps({"title": title, "runs": curves}, indent=2) + "\n")
    _draw(curves, output.with_suffix(".png"), title)
    for curve in curves:
        click.echo(f"{curve['label']}: {curve['test accuracy, %'][-1]:.2f} %")


def _curve(run: Path) -> dict[str, Any]:
    summary = json.loads((run / "summary.json").read_text())
    environment = json.loads((run / "env.json").read_text())
    return {
        "label": f"{summary['method']}, {summary['schedule']}",
        "status": summary["status"],
        "accumulation": summary["accumulation"],
        "seed": summary["seed"],
        "stages": summary["stages"],
        "parameters": summary["parameters"],
        "epochs": summary["epochs"],
        "updates": summary["updates"],
        "test accuracy, %": series(run, "test/top1", 100),
        "test loss": series(run, "test/loss"),
        "training accuracy, %": series(run, "train/top1", 100),
        "training loss": series(run, "train/loss"),
        "environment": {key: value for key, value in environment.items() if key != "command"},
    }


def _draw(curves: list[dict[str, Any]], path: Path, title: str) -> None:
    with panels(path, 2, title=title, width=9, height=3.6) as axes:
        for axis, key in zip(axes, ("test accuracy, %", "training loss"), strict=True):
            for curve, colour, dash in zip(curves, COLOURS, DASHES, strict=False):
                epochs = range(1, len(curve[key]) + 1)
                axis.plot(epochs, curve[key], dash, color=colour, marker="o", markersize=3.5, label=curve["label"])
            axis.set_xlabel("epoch")
            axis.set_title(key, fontsize=10)
        axes[0].legend(frameon=False)


if __name__ == "__main__":
    main()
