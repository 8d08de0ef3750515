"""What corrections for delay cost: processor seconds of an update with each, beside one of the optimizer without it, in turns.

The parameters are those of the GPT of plugins/petra-graph-transformers/specs/gpt_tinyshakespeare.toml, by default 4 layers of width 128,
all in one stage. "spike, D = 0" is the step of a stage without delay. A prediction, or an estimate of earlier weights, is timed by itself,
as a share of the update; "discrepancy, D" is the update that keeps what the estimate is made of. Beside adamw stand
nadam and the optimizers of matrices; soap refreshes its bases in every tenth update.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import click
import torch
from network import save
from petra_graph_delay.corrected_optimizer import corrected
from petra_graph_delay.declared import DelayOptions
from torch import nn

from petra_graph.catalog.optimizers.declared_optimizers import (
    AdamOptions,
    AdamWOptions,
    MuonOptions,
    NadamOptions,
    SgdOptions,
    SoapOptions,
)
from petra_graph.catalog.optimizers.muon import muon
from petra_graph.catalog.optimizers.soap import soap
from petra_graph.catalog.optimizers.torch_optimizers import adam, nadam, sgd
from petra_graph.kinds.optimizer import EARLIER, PREDICTED, ParameterGroups
from petra_graph.runtime.control.keep_freed_memory import keep_freed_memory

VOCABULARY, CONTEXT = 65, 64
DELAY = 3
SPIKE, FEEDBACK = DelayOptions(correction="spike"), DelayOptions(correction="error-feedback")
ESTIMATING = DelayOptions(correct_discrepancy=True)
BASES: dict[str, tuple[Callable[..., torch.optim.Optimizer], Callable[..., Any]]] = {
    "sgd, momentum": (sgd, lambda **how: SgdOptions(nesterov=False, weight_decay=5e-4, **how)),
    "sgd, Nesterov": (sgd, lambda **how: SgdOptions(weight_decay=5e-4, **how)),
    "adam": (adam, AdamOptions),
    "adamw": (adam, AdamWOptions),
}


@click.command()
@click.option("--layers", default=4, show_default=True)
@click.option("--width", default=128, show_default=True)
@click.option("--rounds", default=15, show_default=True, help="Measurements of every variant.")
@click.option("--updates", default=20, show_default=True, help="Of a measurement.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(layers: int, width: int, rounds: int, updates: int, device: str, write: bool) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()  # as a run does
    shapes = gpt_shapes(layers, width)
    found: dict[str, dict[str, float]] = {}
    for name, (build, options) in BASES.items():
        calls = {"base": _updating(build, options(), shapes, 0, device)}
        for delay in (0, DELAY):
            calls[f"spike, D = {delay}"] = _updating(build, options(), shapes, delay, device, SPIKE)
        for predicting in (DelayOptions(predict=True), DelayOptions(predict=True, correction="spike")):
            asking = _asking(build, options(), shapes, device, PREDICTED, predicting)
            calls[f"prediction, {predicting.correction}"] = asking
        for delay in (0, 1):
            calls[f"error feedback, D = {delay}"] = _updating(build, options(), shapes, delay, device, FEEDBACK)
        for delay in (0, DELAY):
            calls[f"discrepancy, D = {delay}"] = _updating(build, options(), shapes, delay, device, ESTIMATING)
        calls["estimate"] = _asking(build, options(), shapes, device, EARLIER, ESTIMATING)
        if name == "adamw":
            calls["nadam"] = _updating(nadam, NadamOptions(weight_decay=0.01), shapes, 0, device)
            calls["muon"] = _updating(muon, MuonOptions(), shapes, 0, device)
            calls[f"muon, spike, D = {DELAY}"] = _updating(muon, MuonOptions(), shapes, DELAY, device, SPIKE)
            calls["soap"] = _updating(soap, SoapOptions(), shapes, 0, device)
        found[name] = _in_turns(calls, rounds, updates, device)
    sizes = {"layers": layers, "width": width, "parameters": sum(map(_elements, shapes)), "tensors": len(shapes)}
    result = {**sizes, "device": device, "rounds": rounds, "updates": updates, "optimizers": found}
    click.echo(json.dumps(result, indent=2))
    if write:
        click.echo(f"written: {save('optimizer_corrections', result)}", err=True)


def gpt_shapes(layers: int, width: int) -> list[tuple[int, ...]]:
    """Return the shapes of the parameters: embeddings, blocks of attention and a hidden width of four times the width, and the head."""
    attention = [(3 * width, width), (3 * width,), (width, width), (width,)]
    hidden = [(4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    norm = [(width,), (width,)]
    block = [*norm, *attention, *norm, *hidden]
    return [(VOCABULARY, width), (CONTEXT, width), *block * layers, *norm, (VOCABULARY, width)]


def _elements(shape: Sequence[int]) -> int:
    return torch.Size(shape).numel()


def _updating(
    build: Callable[..., torch.optim.Optimizer],
    options: Any,
    shapes: Sequence[tuple[int, ...]],
    delay: float,
    device: str,
    corrections: DelayOptions | None = None,
) -> Callable[[], object]:
    """Return a function that makes one update, with the same gradients every time."""
    parameters = [nn.Parameter(torch.randn(shape, device=device)) for shape in shapes]
    decayed = [one for one in parameters if one.dim() > 1]
    undecayed = [one for one in parameters if one.dim() <= 1]
    groups = ParameterGroups(decayed=decayed, undecayed=undecayed, tables=[*decayed[:2], decayed[-1]])
    optimizer = build(groups, options)
    if corrections is not None:
        optimizer = corrected(optimizer, corrections)
        for group in optimizer.param_groups:
            group["staleness"] = delay
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return optimizer.step


def _asking(
    build: Callable[..., torch.optim.Optimizer],
    options: Any,
    shapes: Sequence[tuple[int, ...]],
    device: str,
    method: str,
    corrections: DelayOptions,
) -> Callable[[], object]:
    """Return a function that asks for the parameters of a delay."""
    step: Any = _updating(build, options, shapes, DELAY, device, corrections)
    step()
    ask = getattr(step.__self__, method)
    return lambda: ask(DELAY)


def _in_turns(calls: dict[str, Callable[[], object]], rounds: int, updates: int, device: str) -> dict[str, float]:
    """Return milliseconds of the base, and of each other call the median over rounds of its time over the base's."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    clock = time.process_time if device == "cpu" else time.perf_counter  # other programs take no part of the first
    for number in range(rounds + 1):
        for name, call in calls.items():
            began = clock()
            for _ in range(updates):
                call()
            if device != "cpu":
                torch.cuda.synchronize()
            if number:  # the first is for what torch does once
                seconds[name].append((clock() - began) / updates)
    ratios = {
        name: round(statistics.median(a / b for a, b in zip(taken, seconds["base"], strict=True)), 3)
        for name, taken in seconds.items()
        if name != "base"
    }
    return {"base, milliseconds": round(1000 * statistics.median(seconds["base"]), 3), **ratios}


if __name__ == "__main__":
    main()
