"""How far a reconstructed input is from the true one, by depth and number format.

A stack of residual conv-BN-ReLU couplings runs forwards and is inverted from its output. Relative L2 error of the input:

    rounding     the same parameters both ways
    staleness    parameters changed by a relative 1e-3 in between, with and without an anchor every 8 blocks (a buffered
                 node, whose stored input ends the chain of reconstructions)
"""

from __future__ import annotations

import json
from contextlib import nullcontext

import click
import torch
from network import save
from torch import Tensor, nn

from petra_graph.catalog.blocks.declared_blocks import RevBasicOptions
from petra_graph.catalog.blocks.residual import RevBasic

FORMATS = ("float32", "bfloat16", "float32 streams, bfloat16 F")


@click.command()
@click.option("--depths", default="8,32,128", show_default=True)
@click.option("--channels", default=16, show_default=True)
@click.option("--size", default=16, show_default=True, help="Height and width.")
@click.option("--batch", default=8, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(depths: str, channels: int, size: int, batch: int, seed: int, write: bool) -> None:
    torch.set_num_threads(1)
    result: dict[str, dict[str, dict[str, float]]] = {"rounding": {}, "staleness of 1e-3": {}}
    for depth in map(int, depths.split(",")):
        torch.manual_seed(seed)
        shape = (channels, size, size)
        blocks = [RevBasic([shape, shape], RevBasicOptions()).train() for _ in range(depth)]
        x, t = torch.randn(2, batch, *shape).unbind()
        with torch.no_grad():
            result["rounding"][str(depth)] = {name: _rounding(blocks, x, t, name) for name in FORMATS}
            result["staleness of 1e-3"][str(depth)] = _staleness(blocks, x, t)
        click.echo(json.dumps({depth: [result[kind][str(depth)] for kind in result]}), err=True)
    click.echo(json.dumps(result, indent=2))
    if write:
        setting = {"channels": channels, "size": size, "batch": batch, "seed": seed}
        click.echo(f"written: {save('reconstruction', {**setting, **result})}", err=True)


def _rounding(blocks: list[RevBasic], x: Tensor, t: Tensor, name: str) -> float:
    if name == "bfloat16":
        blocks = [_converted(block) for block in blocks]
        x, t = x.bfloat16(), t.bfloat16()
    half = torch.autocast("cpu", torch.bfloat16) if name.endswith("bfloat16 F") else nullcontext()
    with half:
        found = _back(blocks, _forth(blocks, (x, t)))
    return _error(found, (x, t))


def _staleness(blocks: list[RevBasic], x: Tensor, t: Tensor) -> dict[str, float]:
    moved = [_moved(block, 1e-3) for block in blocks]
    first, anchored = 0.0, 0.0
    streams: tuple[Tensor, ...] = (x, t)
    for start in range(0, len(blocks), 8):
        after = _forth(blocks[start : start + 8], streams)
        error = _error(_back(moved[start : start + 8], after), streams)
        anchored = max(anchored, error)
        streams = after
    first = _error(_back(moved, streams), (x, t))
    return {"without anchors": first, "an anchor every 8 blocks, the worst": anchored}


def _forth(blocks: list[RevBasic], streams: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    for block in blocks:
        streams = block(*streams)
    return streams


def _back(blocks: list[RevBasic], streams: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    for block in reversed(blocks):
        streams = block.inverse(*streams)
    return streams


def _error(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    difference = torch.cat([(a.double() - b.double()).flatten() for a, b in zip(found, expected, strict=True)])
    return float(f"{difference.norm() / torch.cat([b.double().flatten() for b in expected]).norm():.2g}")


def _converted(block: RevBasic) -> RevBasic:
    other = RevBasic(block.inputs, block.options).train()
    other.load_state_dict(block.state_dict())
    return other.bfloat16()


def _moved(block: RevBasic, relative: float) -> RevBasic:
    other = RevBasic(block.inputs, block.options).train()
    other.load_state_dict(block.state_dict())
    for parameter in other.parameters():
        nn.init.normal_(change := torch.empty_like(parameter))
        size = parameter.norm().clamp_min(relative)
        parameter.add_(change * (relative * size / change.norm()))
    return other


if __name__ == "__main__":
    main()
