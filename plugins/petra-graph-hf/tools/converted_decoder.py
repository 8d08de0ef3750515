"""Which conversion of a pretrained decoder keeps what it knows, and can be run backwards: couplings, their coefficients, anchors.

Before any training, for each coupling: cross-entropy on held-out windows; and for each distance of anchors, on some tokens in float32,

    reconstruction    norm of the largest error of a layer's input over the norm of that input
    gradient          norm of the error of all layers' gradients over the norm of the gradients with every input stored

    python tools/converted_decoder.py smollm2.gguf tokenizer.json input.txt --windows 8
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import product
from math import isfinite
from pathlib import Path
from typing import Any, cast

import click
import torch
from petra_graph_hf.names import EMBEDDING, HEAD
from petra_graph_modules.converted_blocks import Coupling, step_around
from torch import Tensor
from torch.nn.functional import cross_entropy

from petra_graph.blocks import Block
from petra_graph.blocks.couplings.residual_chain import COEFFICIENTS
from petra_graph.measure.initial_blocks import initial_block
from petra_graph.record.run_directory import environment
from petra_graph.training.data.micro_batches import spread_rows
from petra_graph.training.prepared_run import Prepared, prepare

HERE = Path(__file__).parent.parent
SPEC = HERE / "specs" / "smollm2_tinyshakespeare.toml"
RESULTS = HERE / "results" / "converted_decoder.json"
SETTINGS = (
    "midpoint",
    *(f"dual-residual {1 - beta:g} {beta}" for beta in (0.1, 0.2, 0.3, 0.5, 0.7)),
    *(f"dual-residual 1 {beta}" for beta in (0.003, 0.01, 0.03, 0.1)),
)
"""Couplings with alpha and beta."""
ALL = 10**9
SOME = 64
"""Tokens of the backward."""


@click.command()
@click.argument("model", type=click.Path(exists=True, resolve_path=True))
@click.argument("tokenizer", type=click.Path(exists=True, resolve_path=True))
@click.argument("root", type=click.Path(exists=True, resolve_path=True))
@click.option(
    "--setting", "settings", multiple=True, default=SETTINGS, help='As "midpoint" or "dual-residual ALPHA BETA".'
)
@click.option(
    "--anchors", multiple=True, type=int, default=(3, 5, 10, ALL), help="Distances; default: 3, 5, 10 and none."
)
@click.option("--windows", default=8, show_default=True, help="Held-out ones, of 256 tokens.")
@click.option("--threads", default=2, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=RESULTS, show_default=True)
def main(
    *,
    model: str,
    tokenizer: str,
    root: str,
    settings: Sequence[str],
    anchors: Sequence[int],
    windows: int,
    threads: int,
    output: Path,
) -> None:
    torch.set_num_threads(threads)
    files = {
        "architecture.options.model": model,
        "init.weights": model,
        "data.options.tokenizer": tokenizer,
        "metric.bits-per-byte.options.tokenizer": tokenizer,
        "data.options.root": root,
    }
    ready = prepare(str(SPEC), [f"{key}={json.dumps(value)}" for key, value in files.items()])
    blocks = dict(loaded(ready))
    embedding, head = blocks.pop(EMBEDDING), blocks.pop(HEAD)
    layers = list(blocks.values())
    test = ready.opened.data.test
    tokens, targets = test.fetch(spread_rows(len(test), windows), seed=0, epoch=0)
    kept = json.loads(output.read_text()) if output.exists() else {"rows": []}
    rows: list[dict[str, Any]] = kept["rows"]
    for setting in ("none", *settings):
        if any((row["setting"], row["windows"]) == (setting, windows) for row in rows):
            continue
        steps = converted(layers, setting)
        row: dict[str, Any] = {"setting": setting, "windows": windows}
        row["nats a token"] = loss_of(embedding, steps, head, tokens, targets)
        if setting != "none":
            row["by anchors"] = backwards(embedding, steps, head, tokens[:1, :SOME], targets[:1, :SOME], anchors)
        click.echo(json.dumps(row))
        rows.append(row)
        setting_of_machine = {key: value for key, value in environment().items() if key != "command"}
        now = datetime.now(UTC).isoformat(timespec="seconds")
        output.parent.mkdir(exist_ok=True)
        output.write_text(json.dumps({"date": now, "rows": rows, "environment": setting_of_machine}, indent=1) + "\n")


def loaded(ready: Prepared) -> Iterator[tuple[str, Block]]:
    """Yield the network's nodes with the pretrained weights."""
    assert ready.initial is not None
    graph, shapes = ready.network.graph, ready.network.shapes
    modules = ((name, initial_block(graph.nodes[name], shapes[name].inputs, 0)) for name in graph.order)
    return ready.initial.loaded(modules)


def converted(layers: Sequence[Block], setting: str) -> list[Block]:
    """Return the layers as steps of a coupling, around the same parameters."""
    for layer, name in product(layers, COEFFICIENTS):
        layer._parameters.pop(name, None)  # noqa: SLF001  those of the setting before
    if setting == "none":
        return list(layers)
    coupling, *numbers = setting.split()
    kind = cast("Coupling", coupling)
    alpha, beta = map(float, numbers or (1, 1))
    return [
        step_around(layer, [*layer.inputs] * (1 if place == 0 else 2), kind, first=place == 0, alpha=alpha, beta=beta)
        for place, layer in enumerate(layers)
    ]


@torch.no_grad()
def loss_of(embedding: Block, steps: Sequence[Block], head: Block, tokens: Tensor, targets: Tensor) -> float:
    """Return the mean cross-entropy in nats a token, window by window."""
    losses = []
    for at in range(len(tokens)):
        streams = embedding(tokens[at : at + 1])
        for step in steps:
            streams = step(*streams)
        losses.append(float(cross_entropy(head(streams[0])[0], targets[at : at + 1])))
    return sum(losses) / len(losses)


def backwards(
    embedding: Block, steps: Sequence[Block], head: Block, tokens: Tensor, targets: Tensor, anchors: Sequence[int]
) -> dict[str, dict[str, float | None]]:
    """Return the two errors for each distance of anchors, of a backward that reconstructs the inputs of all other layers."""
    states = []
    with torch.no_grad():
        streams = embedding(tokens)
        for step in steps:
            states.append(streams)
            streams = step(*streams)
        states.append(streams)
    last = states[-1][0].clone().requires_grad_()
    (d_last,) = torch.autograd.grad(cross_entropy(head(last)[0], targets), last)
    exact = {}
    found: dict[str, dict[str, float | None]] = {}
    for distance in (1, *anchors):
        error, squared, streams = 0.0, 0.0, states[-1]
        gradients: tuple[Tensor, ...] = (d_last, torch.zeros_like(d_last))
        for place in reversed(range(len(steps))):
            step, true = steps[place], states[place]
            with torch.no_grad():
                streams = true if (place + 1) % distance == 0 else step.inverse(*streams)  # type: ignore[operator]
            error = max(error, relative(streams, true))
            inputs = [stream.detach().clone().requires_grad_() for stream in streams]
            parameters = [one for one in step.parameters() if one.requires_grad]
            got = torch.autograd.grad(step(*inputs), [*inputs, *parameters], gradients)
            gradients, own = got[: len(inputs)], torch.cat([one.flatten() for one in got[len(inputs) :]])
            if distance == 1:
                exact[place] = own
            squared += float((own - exact[place]).double().square().sum())
        norm = sum(float(one.double().square().sum()) for one in exact.values()) ** 0.5
        if distance > 1:
            name = "none" if distance == ALL else str(distance)
            found[name] = {"reconstruction": rounded(error), "gradient": rounded(squared**0.5 / norm)}
    return found


def rounded(error: float) -> float | None:
    """Return two digits; None where it is beyond float32."""
    return float(f"{error:.2g}") if isfinite(error) else None


def relative(found: Sequence[Tensor], true: Sequence[Tensor]) -> float:
    difference = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(found, true, strict=True))
    return float((difference / sum(float(one.double().square().sum()) for one in true)) ** 0.5)


if __name__ == "__main__":
    main()
