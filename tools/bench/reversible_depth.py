"""Memory and time of deep residual networks, in plain PyTorch: what each way to train them costs as depth grows.

    plain            the ordinary residual network x + F(x) under autograd
    checkpoint       the same, with torch.utils.checkpoint around each block, in its two implementations
    reversible       the same functions F under petra_graph.reversible

Two networks: pre-norm transformer blocks, as a GPT has, and the residual blocks of a RevNet. All that is compared runs in
turns in one process. Times are the process's CPU seconds for a step of forward and backward: the best of all rounds, as a
ratio to the best of the plain network, since whatever else the machine does only adds to them. Bytes are live tensors at
the peak of one step, beside parameters and their gradients, which all have alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from itertools import product
from typing import Any

import click
import torch
from attrs import frozen
from network import Train, in_turns, save
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from petra_graph import reversible
from petra_graph.measure.tally import LiveBytes

PLAIN, CHECKPOINT, REENTRANT = "plain autograd", "checkpoint", "checkpoint, reentrant"
REVERSIBLE = "reversible"
WIDTH, HEADS, CONTEXT = 128, 4, 64
CHANNELS, SIDE = 16, 16
LONG = 64
"""Blocks from which on a round takes seconds; smaller networks have more rounds."""


class Attention(nn.Module):
    """Causal self-attention behind a normalisation, [n, context, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.read, self.write = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the block adds to the stream."""
        shape = (*x.shape[:2], 3, HEADS, WIDTH // HEADS)
        query, key, value = self.read(self.norm(x)).view(shape).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = self.write(mixed.transpose(1, 2).reshape(x.shape))
        return result


class Mlp(nn.Module):
    """Two layers behind a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return what the block adds to the stream."""
        result: Tensor = self.second(gelu(self.first(self.norm(x))))
        return result


class Residual(nn.Sequential):
    """The residual function of a basic block; the last norm begins small, as in deep networks, so that streams do not grow."""

    def __init__(self, depth: int) -> None:
        def convolution() -> nn.Conv2d:
            return nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)

        super().__init__(
            convolution(), nn.BatchNorm2d(CHANNELS), nn.ReLU(inplace=True), convolution(), nn.BatchNorm2d(CHANNELS)
        )
        nn.init.constant_(self[4].weight, depth**-0.5)  # type: ignore[arg-type]


class Block(nn.Module):
    """An ordinary residual block: each function adds to the stream."""

    def __init__(self, functions: Sequence[nn.Module]) -> None:
        super().__init__()
        self.functions = nn.ModuleList(functions)

    def forward(self, x: Tensor) -> Tensor:
        """Return x + F(x), and the same for the next function."""
        for function in self.functions:
            x = x + function(x)
        return x


@frozen(kw_only=True)
class Kind:
    """One of the two networks."""

    name: str
    functions: Callable[[int], tuple[nn.Module, ...]]
    """Of one block, in a network of so many."""
    shape: tuple[int, ...]
    """Of the stream, with the batch."""


KINDS = (
    Kind(name="GPT", functions=lambda _: (Attention(), Mlp()), shape=(4, CONTEXT, WIDTH)),
    Kind(name="RevNet", functions=lambda depth: (Residual(depth),), shape=(8, CHANNELS, SIDE, SIDE)),
)


@click.command()
@click.option("--depths", default="8,32,128,512", show_default=True, help="Blocks of each network.")
@click.option("--rounds", default=3, show_default=True, help=f"Turns of each contestant; more below {LONG} blocks.")
@click.option("--threads", default=1, show_default=True)
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(depths: str, rounds: int, threads: int, write: bool) -> None:
    torch.set_num_threads(threads)
    rows = []
    for kind, depth in product(KINDS, map(int, depths.split(","))):
        rows.append(_measured(kind, depth, rounds))
        _show(rows[-1])
    if write:
        setting = {"rounds": rounds, "threads": threads, "streams": {kind.name: kind.shape for kind in KINDS}}
        path = save("reversible_depth", {**setting, "rows": rows})
        click.echo(f"written: {path}", err=True)


def _measured(kind: Kind, depth: int, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    functions = [kind.functions(depth) for _ in range(depth)]
    blocks = nn.ModuleList(Block(parts) for parts in functions)
    body = reversible([parts if len(parts) > 1 else parts[0] for parts in functions])
    for parameter in body.parameters():
        parameter.grad = torch.zeros_like(parameter)
    stream = torch.randn(kind.shape)

    def one_after_another(run: Callable[[nn.Module, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: reduce(lambda x, block: run(block, x), blocks, x)

    networks: dict[str, Callable[[Tensor], Tensor]] = {
        PLAIN: one_after_another(lambda block, x: block(x)),
        CHECKPOINT: one_after_another(partial(checkpoint, use_reentrant=False)),
        REENTRANT: one_after_another(partial(checkpoint, use_reentrant=True)),
        REVERSIBLE: body,
    }
    contestants: dict[str, Train] = {name: partial(_step, network, stream) for name, network in networks.items()}
    peaks = {}
    for name, run in contestants.items():
        with LiveBytes() as live:
            run()
        peaks[name] = live.peak
    seconds = in_turns(contestants, rounds * max(1, LONG // depth), _seconds, warm_up=0)
    best = {name: min(taken) for name, taken in seconds.items()}
    return {
        "network": kind.name,
        "blocks": depth,
        "bytes": peaks,
        "time over plain autograd": {name: round(taken / best[PLAIN], 3) for name, taken in best.items()},
        "time over checkpoint": {name: round(taken / best[CHECKPOINT], 3) for name, taken in best.items()},
        "CPU seconds of each round": seconds,
        "gradient error": _gradient_error(body, stream),
    }


def _step(network: Callable[[Tensor], Tensor], stream: Tensor) -> None:
    """Run forward and backward; gradients are added to those that there are."""
    network(stream.clone().requires_grad_()).square().mean().backward()  # type: ignore[no-untyped-call]


def _seconds(run: Train) -> float:
    began = time.process_time()
    run()
    return round(time.process_time() - began, 5)


def _gradient_error(body: Any, stream: Tensor) -> float:
    """Return how far the gradients are from those of the same network under plain autograd, relative, in float32."""
    found = []
    for kept in (0, len(body)):
        body.keep_graphs = kept
        body.zero_grad(set_to_none=True)
        _step(body, stream)
        found.append([parameter.grad for parameter in body.parameters()])
    differences = torch.stack([(one - other).norm() for one, other in zip(*found, strict=True)])
    return float(differences.norm() / torch.stack([one.norm() for one in found[1]]).norm())


def _show(row: Mapping[str, Any]) -> None:
    click.echo(f"{row['network']}, {row['blocks']} blocks; gradient error {row['gradient error']:.1e}")
    for name, size in row["bytes"].items():
        over_plain, over_checkpoint = (row[key][name] for key in ("time over plain autograd", "time over checkpoint"))
        click.echo(
            f"  {name:34} {size / 2**20:9.2f} MiB   {over_plain:6.3f} x plain   {over_checkpoint:6.3f} x checkpoint"
        )


if __name__ == "__main__":
    main()
