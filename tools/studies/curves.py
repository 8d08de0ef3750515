"""Curves of finished runs, side by side: one JSON file and one picture.

python tools/studies/curves.py RUN... --output tools/studies/results/cifar10-ten-epochs
"""

from __future__ import annotations

import json
from pathlib import Path

import click

COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#7a5195")
DASHES = ("-", "--", "-.", ":")


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


def _curve(run: Path) -> dict[str, object]:
    summary = json.loads((run / "summary.json").read_text())
    environment = json.loads((run / "env.json").read_text())
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]

    def series(name: str, scale: float = 1.0) -> list[float]:
        return [round(scale * event["value"], 4) for event in events if event["name"] == name]

    return {
        "label": f"{summary['method']}, {summary['schedule']}",
        "status": summary["status"],
        "accumulation": summary["accumulation"],
        "seed": summary["seed"],
        "stages": summary["stages"],
        "parameters": summary["parameters"],
        "epochs": summary["epochs"],
        "updates": summary["updates"],
        "test accuracy, %": series("test/top1", 100),
        "test loss": series("test/loss"),
        "training accuracy, %": series("train/top1", 100),
        "training loss": series("train/loss"),
        "environment": {key: value for key, value in environment.items() if key != "command"},
    }


def _draw(curves: list[dict], path: Path, title: str) -> None:  # type: ignore[type-arg]
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, key, name in (
        (axes[0], "test accuracy, %", "test accuracy, %"),
        (axes[1], "training loss", "training loss"),
    ):
        for curve, colour, dash in zip(curves, COLOURS, DASHES, strict=False):
            epochs = range(1, len(curve[key]) + 1)
            axis.plot(epochs, curve[key], dash, color=colour, marker="o", markersize=3.5, label=curve["label"])
        axis.set_xlabel("epoch")
        axis.set_title(name, fontsize=10)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    if title:
        figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
