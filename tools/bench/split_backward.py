"""A backward in parts beside the whole one: reconstruct (R), input gradient (I), parameter gradient (W).

Each block's two backwards run in turns, in one invocation; read the ratios. The parts' own shares are of their sum. On a processor its
own seconds count, which other programs disturb less.

    reversible    reverse_vjp against reconstruct, its vjp, and what that has deferred
    buffered      a recomputation and its gradient against the same with the gradients of parameters deferred

The GPT's block is that of plugins/petra-graph-transformers, which must be on PYTHONPATH or installed.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import click
import torch
from network import save

from petra_graph.blocks import Block, Reconstruction, Reversible, Streams, backpropagate, deferred_gradients, leaf
from petra_graph.catalog.blocks.declared_blocks import BasicOptions, ConvStemOptions, RevBasicOptions, RevMlpOptions
from petra_graph.catalog.blocks.residual import DownBasic, RevBasic, RevMlp
from petra_graph.catalog.blocks.stems_and_heads import ConvStem

Shape = tuple[int, ...]
Case = tuple[Callable[[], Block], list[Shape]]


def _reversible(block: type[Block], options: object, shape: Shape) -> Case:
    return partial(block, [shape, shape], options), [shape, shape]


def _transformer(tokens: int, width: int, heads: int) -> Case:
    from petra_graph_transformers.blocks import RevTransformer
    from petra_graph_transformers.declared import RevTransformerOptions

    return _reversible(RevTransformer, RevTransformerOptions(heads=heads, causal=True), (tokens, width))


CASES: dict[str, Callable[[], Case]] = {
    **{
        f"rev-basic, {c}x{side}x{side}": partial(_reversible, RevBasic, RevBasicOptions(), (c, side, side))
        for c, side in ((8, 32), (64, 32), (128, 16), (256, 8), (512, 4))
    },
    "rev-mlp, 256": partial(_reversible, RevMlp, RevMlpOptions(hidden=1024), (256,)),
    **{
        f"rev-transformer, {tokens}x{width}": partial(_transformer, tokens, width, heads)
        for tokens, width, heads in ((64, 128, 4), (128, 768, 12))
    },
    "down-basic, 64x32x32": lambda: (
        partial(DownBasic, [(64, 32, 32)] * 2, BasicOptions(channels=128, stride=2)),
        [(64, 32, 32)] * 2,
    ),
    "conv-stem, 3x32x32": lambda: (partial(ConvStem, [(3, 32, 32)], ConvStemOptions(channels=64)), [(3, 32, 32)]),
}


@click.command()
@click.option("--batch", default=32, show_default=True)
@click.option("--rounds", default=15, show_default=True, help="Measurements of each; their median ratio counts.")
@click.option("--threads", default=1, show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--only", default="", help="Names of blocks that begin with this.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(batch: int, rounds: int, threads: int, device: str, only: str, write: bool) -> None:
    torch.set_num_threads(threads)
    result = {}
    for name, case in CASES.items():
        if name.startswith(only):
            result[name] = _compared(case(), batch, rounds, torch.device(device))
            click.echo(json.dumps({name: result[name]}), err=True)
    click.echo(json.dumps(result, indent=2))
    if write:
        setting = {"batch": batch, "rounds": rounds, "threads": threads, "device": device}
        click.echo(f"written: {save('split_backward', {**setting, 'blocks': result})}", err=True)


def _compared(case: Case, batch: int, rounds: int, device: torch.device) -> dict[str, float]:
    build, shapes = case
    torch.manual_seed(0)
    block = build().to(device).train()
    inputs = tuple(torch.randn(batch, *shape, device=device) for shape in shapes)
    with torch.no_grad():
        outputs = block(*inputs)
    gradients = tuple(torch.randn_like(stream) for stream in outputs)
    whole, parts = _passes(block, inputs, outputs, gradients)
    passes = {"whole": [whole], "parts": parts}
    seconds: dict[str, list[list[float]]] = {name: [] for name in passes}
    for at in range(rounds + 2):
        for name in sorted(passes, reverse=at % 2 == 1):
            block.zero_grad()
            marks = [_now(device)]
            for one in passes[name]:
                one()
                marks.append(_now(device))
            if at > 1:
                seconds[name].append([end - begin for begin, end in pairwise(marks)])
    ratios = [sum(parts) / sum(whole) for whole, parts in zip(seconds["whole"], seconds["parts"], strict=True)]
    shares = [statistics.median(one[at] / sum(one) for one in seconds["parts"]) for at in range(len(parts))]
    return {
        "whole, ms": round(1e3 * statistics.median(map(sum, seconds["whole"])), 3),
        "parts / whole": round(statistics.median(ratios), 3),
        "lower quartile": round(statistics.quantiles(ratios)[0], 3),
        "upper quartile": round(statistics.quantiles(ratios)[2], 3),
        **{name: round(share, 3) for name, share in zip("RIW", shares, strict=True)},
    }


def _passes(
    block: Block, inputs: Streams, outputs: Streams, gradients: Streams
) -> tuple[Callable[[], object], list[Callable[[], object]]]:
    held: dict[str, Reconstruction] = {}
    deferring: list[Callable[[], None]] = []

    def whole() -> None:
        if isinstance(block, Reversible):
            block.reverse_vjp(outputs, gradients)
        else:
            _recomputed(block, inputs).vjp(gradients)

    def reconstruct() -> None:
        held["R"] = block.reconstruct(outputs) if isinstance(block, Reversible) else _recomputed(block, inputs)

    def input_gradient() -> None:
        with deferred_gradients() as deferred:
            held.pop("R").vjp(gradients)
        deferring.append(deferred.accumulate)

    def parameter_gradient() -> None:
        deferring.pop()()

    return whole, [reconstruct, input_gradient, parameter_gradient]


def _recomputed(block: Block, inputs: Streams) -> Reconstruction:
    """Evaluate a buffered block again; a stem's samples need no gradient."""
    leaves = inputs if len(inputs) == 1 else tuple(map(leaf, inputs))
    return Reconstruction(inputs, partial(backpropagate, block(*leaves), inputs=leaves))


def _now(device: torch.device) -> float:
    if device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


if __name__ == "__main__":
    main()
