"""A ResNet trained by backpropagation, converted to a reversible network with its weights, and fine-tuned as one.

The first images of Fashion-MNIST, so that it takes minutes on one core. Accuracies before, after conversion and after fine-tuning,
beside the memory that the stages need for tensors, as the repository's tools/bench measure it. It needs a checkout of
petra-graph around this package.

python plugins/petra-graph-torchvision/tools/finetune.py
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import torch
from chain import Chain
from petra_graph_vision.fashion_mnist import read_idx

import petra_graph
from petra_graph.record.run_directory import environment
from petra_graph.training.prepared_run import prepare

HERE = Path(__file__).parent.parent
SPEC = HERE / "specs" / "resnet50_dr2net_fashion_mnist.toml"
RESULTS = HERE / "results" / "finetune.json"
BATCH = 64
ORIGINAL = {
    "architecture": {
        "name": "torchvision",
        "options": {"network": "resnet50", "arguments": {"width_per_group": 16, "zero_init_residual": True}},
    },
    "init.leave_out": [],
    "callback": [],
    "method.name": "backprop",
}
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def settings(updates: int) -> dict[str, dict[str, Any]]:
    """Return what is fine-tuned, by name; coefficients move over the first 60 % of the updates."""
    moving = int(0.6 * updates)
    schedule = [{"name": "dual-residual-schedule", "options": {"alpha": 0.3, "beta": 0.7, "updates": moving}}]
    still: dict[str, Any] = {"callback": []}
    moved: dict[str, Any] = {"callback": schedule}
    petra = {"method.name": "petra", "method.schedule": "1f1b", "partition.stages": 4}
    return {
        "original, backprop": ORIGINAL,
        "converted, coefficients fixed, reversible-backprop": still,
        "converted, coefficients move, reversible-backprop": moved,
        "converted, coefficients move, petra 1f1b, 4 stages": moved | petra,
    }


@click.command()
@click.option("--root", default="/usr/share/datasets/fashion-mnist", show_default=True)
@click.option("--images", default=4800, show_default=True, help="For training.")
@click.option("--tests", default=2000, show_default=True)
@click.option("--epochs", default=3, show_default=True, help="Before the conversion; there is one after it.")
@click.option("--lr", default=5e-4, show_default=True, help="Of fine-tuning.")
@click.option("--pretrained", type=click.Path(path_type=Path, exists=True), help="A run to begin with.")
@click.option("--output", type=click.Path(path_type=Path), default=RESULTS, show_default=True)
def main(root: str, images: int, tests: int, epochs: int, lr: float, pretrained: Path | None, output: Path) -> None:
    torch.set_num_threads(1)
    few = first_images(Path(root), Path("runs/fashion-first"), images, tests)
    common: dict[str, Any] = {"data.options.root": str(few), "run.directory": "runs/finetune"}
    if pretrained is None:
        changes = {**ORIGINAL, **common, "run.epochs": epochs, "optimizer.options.lr": 1e-3}
        pretrained = Path(petra_graph.train(SPEC, changes).directory)
    before = json.loads((pretrained / "summary.json").read_text())["test"]
    click.echo(f"pretrained, in {pretrained}: {100 * before['top1']:.2f} % of the test images")
    rows: list[dict[str, Any]] = []
    for name, changes in settings(images // BATCH).items():
        whole: dict[str, Any] = {
            **changes,
            **common,
            "init.weights": str(pretrained),
            "optimizer.options.lr": lr,
            "run.epochs": 1,
        }
        begun = at_start(whole)
        test = petra_graph.train(SPEC, whole).summary["test"]
        bytes_held = peaks(whole)
        row = {"setting": name, "changes": changes, "before": begun, "after": test["top1"], "loss": test["loss"]}
        rows.append({**row, "peak bytes of the stages": bytes_held})
        click.echo(
            f"{name:52} {100 * begun:.2f} % before, {100 * test['top1']:.2f} % after, {bytes_held / 2**20:.1f} MiB"
        )
        setting = {key: value for key, value in environment().items() if key != "command"}
        found = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "images": images,
            "tests": tests,
            "epochs before": epochs,
            "lr": lr,
            "pretrained": before,
            "rows": rows,
            "environment": setting,
        }
        output.parent.mkdir(exist_ok=True)
        output.write_text(json.dumps(found, indent=1) + "\n")


def first_images(root: Path, to: Path, images: int, tests: int) -> Path:
    """Write the first images of both splits to a folder of their own."""
    to.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        path = next(path for path in (root / name, root / f"{name}.gz") if path.exists())
        values = read_idx(path, 3 if "images" in name else 1)[: images if name.startswith("train") else tests]
        head = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4) for size in values.shape)
        (to / name).write_bytes(head + values.tobytes())
    return to.resolve()


def at_start(changes: dict[str, Any]) -> float:
    """Return the share of test images that the network classifies rightly before it is trained."""
    ready = prepare(str(SPEC), [f"{key}={_toml(value)}" for key, value in changes.items()])
    share: float = Chain.of(ready).accuracy(ready)
    return share


def peaks(changes: dict[str, Any]) -> int:
    """Train a little, and return the most bytes that each stage held, added up."""
    sys.path.insert(0, str(HERE.parent.parent / "tools" / "bench"))
    from network import stage_peaks

    ready = prepare(str(SPEC), [f"{key}={_toml(value)}" for key, value in changes.items()])
    return sum(stage_peaks(ready, 2 * max(program.depth for program in ready.programs) + 3))


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


if __name__ == "__main__":
    main()
