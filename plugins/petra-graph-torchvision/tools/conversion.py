"""What a converted network is at the start, by beta: its error against the original, and the error of running it backwards.

python plugins/petra-graph-torchvision/tools/conversion.py RUN

RUN is a run of the original network, as `tools/finetune.py` makes one. Images are the first test images of its data set. Each chain of
reversible blocks runs forwards and backwards with batch statistics, as in training; below a chain its input was stored.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from chain import Chain, seen
from torch import Tensor, nn

from petra_graph.blocks import Reversible, Streams, frozen_statistics
from petra_graph.record.run_directory import environment
from petra_graph.training.prepared_run import Prepared, prepare

HERE = Path(__file__).parent.parent
SPEC = HERE / "specs" / "resnet50_dr2net_fashion_mnist.toml"
RESULTS = HERE / "results" / "conversion.json"
COEFFICIENTS = (
    *[(1.0, beta) for beta in (1.0, 0.7, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4)],
    (0.3, 0.7),
)
"""alpha, beta; the last is where the schedule goes."""


@click.command()
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--root", default="runs/fashion-first", show_default=True)
@click.option("--images", default=64, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=RESULTS, show_default=True)
def main(run: Path, root: str, images: int, output: Path) -> None:
    torch.set_num_threads(1)
    common = [f'init.weights="{run}"', f'data.options.root="{Path(root).resolve()}"']
    original = {
        "architecture": '{ name = "torchvision", options = { network = "resnet50", arguments = { width_per_group = 16 } } }',
        "init.leave_out": "[]",
        "callback": "[]",
        "method.name": '"backprop"',
    }
    plain = prepare(str(SPEC), [*common, *[f"{key}={value}" for key, value in original.items()]])
    rows: list[dict[str, Any]] = []
    for alpha, beta in COEFFICIENTS:
        changes = [f"architecture.options.alpha={alpha}", f"architecture.options.beta={beta}"]
        ready = prepare(str(SPEC), [*common, *changes])
        row: dict[str, Any] = {"alpha": alpha, "beta": beta, "accuracy": Chain.of(ready).accuracy(ready)}
        for dtype in (torch.float32, torch.float64):
            row[str(dtype).removeprefix("torch.")] = errors(plain, ready, images, dtype)
        rows.append(row)
        single, double = row["float32"], row["float64"]
        click.echo(
            f"alpha {alpha:g}, beta {beta:7g}: {100 * row['accuracy']:.2f} %, outputs {single['outputs']:.1e} from the original's; "
            f"reconstruction {single['reconstruction']:.1e} and {double['reconstruction']:.1e}, "
            f"gradient {single['gradient']:.1e} and {double['gradient']:.1e}"
        )
    found = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "original's accuracy": Chain.of(plain).accuracy(plain),
        "images": images,
        "rows": rows,
        "environment": {key: value for key, value in environment().items() if key != "command"},
    }
    output.write_text(json.dumps(found, indent=1) + "\n")


def errors(plain: Prepared, ready: Prepared, images: int, dtype: torch.dtype) -> dict[str, float]:
    """Return the relative errors of outputs, of the worst chain's input, and of the gradient of all parameters."""
    samples, targets = ready.opened.data.test.fetch(np.arange(images), seed=0, epoch=0)
    x = seen(samples, ready, dtype)
    original, converted = Chain.of(plain, dtype), Chain.of(ready, dtype)
    for chain in (original, converted):
        for block in chain.blocks.values():
            block.eval()
    with torch.no_grad():
        outputs = relative([converted(x)], [original(x)])
    exact = gradients(converted, x, targets)
    again = backwards(Chain.of(ready, dtype), x, targets)
    return {"outputs": outputs, "reconstruction": again[0], "gradient": relative(again[1], exact)}


def gradients(chain: Chain, x: Tensor, targets: Tensor) -> list[Tensor]:
    """Return the gradient of all parameters that are trained, by plain autograd."""
    for block in chain.blocks.values():
        block.train()
    nn.functional.cross_entropy(chain(x), targets).backward()  # type: ignore[no-untyped-call]
    return _gradients(chain)


def backwards(chain: Chain, x: Tensor, targets: Tensor) -> tuple[float, list[Tensor]]:
    """Return the largest relative error of a chain's input, and the gradient, with reversible blocks reconstructed."""
    inputs: list[Streams] = []
    streams: Streams = (x,)
    blocks = list(chain.blocks.values())
    for block in blocks:
        inputs.append(streams)
        block.train()
        with torch.no_grad(), frozen_statistics(block):
            streams = block(*streams)
    worst = 0.0
    logits = streams[0].requires_grad_()
    passed: Streams = torch.autograd.grad(nn.functional.cross_entropy(logits, targets), (logits,))
    outputs: Streams | None = None
    for index, block in reversed(list(enumerate(blocks))):
        if isinstance(block, Reversible):
            back = block.reverse_vjp(outputs or inputs[index + 1], passed)
            outputs, passed = back.inputs, back.gradients
            worst = max(worst, relative(outputs, inputs[index]))
            continue
        outputs = None  # a stored input: the chain below begins anew
        leaves = tuple(stream.detach().requires_grad_() for stream in inputs[index])
        with frozen_statistics(block):
            made = block(*leaves)
        torch.autograd.backward(made, passed)
        passed = tuple(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves)
    return worst, _gradients(chain)


def _gradients(chain: Chain) -> list[Tensor]:
    found = [parameter.grad for block in chain.blocks.values() for parameter in block.parameters()]
    return [gradient for gradient in found if gradient is not None]


def relative(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the norm of a difference by the norm of what is expected."""
    apart = sum(float((one - other).double().square().sum()) for one, other in zip(found, expected, strict=True))
    return float((apart / sum(float(other.double().square().sum()) for other in expected)) ** 0.5)


if __name__ == "__main__":
    main()
