"""Split backwards beside whole ones: in a block, in plans, and in runs on processes.

    blocks        a backward in its parts, reconstruct (R), input gradient (I), parameter gradient (W), against the whole one
    plans         staleness, memory and speed that plans predict for J equal stages, and for RevNet50, by schedule
    throughput    runs on J processes, split at the least depths of `auto`, also with a profile that says where parts pay, beside `1f1b`

**blocks**: each block's two backwards run in turns, in one invocation; read the ratios. The parts' own shares are of their sum. On a
processor its own seconds count, which other programs disturb less.

    reversible    reverse_vjp against reconstruct, its vjp, and what that has deferred
    buffered      a recomputation and its gradient against the same with the gradients of parameters deferred

The GPT's block is that of plugins/petra-graph-transformers, which must be on PYTHONPATH or installed.

**throughput**: each round runs all cases in turns; a ratio is of two neighbouring runs. The cut is equal in nodes, not in seconds, and a run's
seconds have its fill and its drain, which are shorter with less depth.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import click
import torch
from network import save

from petra_graph.blocks import Block, Reconstruction, Reversible, Streams, backpropagate, deferred_gradients, leaf
from petra_graph.catalog.blocks.declared_blocks import BasicOptions, ConvStemOptions, RevBasicOptions, RevMlpOptions
from petra_graph.catalog.blocks.residual import DownBasic, RevBasic, RevMlp
from petra_graph.catalog.blocks.stems_and_heads import ConvStem
from petra_graph.planning.plan_spec import Planner

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


ORDERS = {
    "lockstep": ("method.schedule=lockstep",),
    "1f1b": ("method.schedule=1f1b",),
    "auto": ("method.schedule=auto",),
    "auto, split": ("method.schedule=auto", "method.split_backward=true"),
}
SPLIT = ("auto, split", "auto, split, profile")
"""Without a profile every stage has three parts."""
CHAIN = """\
name = "equal"
[[graph.node]]
name = "stem"
block = "conv-stem"
options = {{ channels = {channels} }}
[[graph.node]]
name = "rev"
block = "rev-basic"
repeat = {repeat}
[[graph.node]]
name = "head"
block = "pool-linear"
options = {{ outputs = 10 }}
[method]
name = "petra"
[data]
name = "random"
batch = {batch}
options = {{ shape = [3, 32, 32], classes = 10, train = 4096, test = 64 }}
"""
BLOCKS = 4
"""Reversible blocks of a stage; the stem and the head, which take little, come on top in the first and the last."""
REVNET50 = str(Path(__file__).parents[2] / "specs" / "revnet50_imagenet.toml")
NVLINK = ("partition.link_latency=1e-5", "partition.link_bandwidth=3e11")
SLOW = ("partition.link_latency=1e-5", "partition.link_bandwidth=1.25e10")
"""100 Gbit/s."""


@click.group()
def main() -> None:
    pass


@main.command()
@click.option("--batch", default=32, show_default=True)
@click.option("--rounds", default=15, show_default=True, help="Measurements of each; their median ratio counts.")
@click.option("--threads", default=1, show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--only", default="", help="Names of blocks that begin with this.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def blocks(batch: int, rounds: int, threads: int, device: str, only: str, write: bool) -> None:
    torch.set_num_threads(threads)
    result = {}
    for name, case in CASES.items():
        if name.startswith(only):
            result[name] = _compared(case(), batch, rounds, torch.device(device))
            click.echo(json.dumps({name: result[name]}), err=True)
    click.echo(json.dumps(result, indent=2))
    if write:
        setting = {"batch": batch, "rounds": rounds, "threads": threads, "device": device}
        click.echo(f"written: {save('split_backward_blocks', {**setting, 'blocks': result})}", err=True)


@main.command()
@click.option("--stages", default=(2, 4, 8, 16), show_default=True, multiple=True, type=int)
@click.option("--batch", default=64, show_default=True)
@click.option("--channels", default=64, show_default=True, help="Of each of two streams.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def plans(stages: tuple[int, ...], batch: int, channels: int, write: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            row
            for count in stages
            for row in planned(_chain(folder, count, batch, channels), count, (*NVLINK, *_equal(count)))
        ]
    revnet50 = [
        {"links": name, **row}
        for count in (8, 18)
        for name, links in (("fast", NVLINK), ("slow", SLOW))
        for row in planned(REVNET50, count, (*links, *_by_cost(count)))
    ]
    for row in (*rows, *revnet50):
        click.echo(json.dumps(row))
    if write:
        result = {"batch": batch, "channels": channels, "rows": rows, "revnet50": revnet50}
        click.echo(f"written: {save('split_backward_plans', result)}", err=True)


def planned(spec: str, stages: int, settings: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield what the plan of each order predicts, an A100 a stage."""
    for name, order in ORDERS.items():
        found = Planner(spec, ("partition.device_type=a100-40gb", *settings, *order)).plan().prediction
        yield {
            "stages": stages,
            "schedule": name,
            "staleness of the first stage": found.programs[0].depth - 1,
            "sum over stages": sum(program.depth - 1 for program in found.programs),
            "fullest device, MiB": round(max(held.total for held in found.device_memory.values()) / 2**20, 1),
            "samples per second": round(found.timing.samples_per_second(found.inputs.costs.micro_batch), 1),
            "words": found.placement.words,
        }


@main.command()
@click.option("--processes", default=(2, 4), show_default=True, multiple=True, type=int)
@click.option("--batch", default=16, show_default=True)
@click.option("--channels", default=16, show_default=True, help="Of each of two streams.")
@click.option("--micro-batches", default=64, show_default=True, help="Of a run.")
@click.option("--rounds", default=7, show_default=True, help="Turns of everything.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def throughput(
    processes: tuple[int, ...], batch: int, channels: int, micro_batches: int, rounds: int, write: bool
) -> None:
    cases = [(count, name) for count in processes for name in ("1f1b", *SPLIT)]
    seconds: dict[tuple[int, str], list[float]] = {case: [] for case in cases}
    depths: dict[tuple[int, str], Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        specs = {count: _chain(folder, count, batch, channels) for count in processes}
        profiles = {
            count: _profile(spec, _equal(count), Path(folder, f"{count}.json")) for count, spec in specs.items()
        }
        for turn in range(rounds):
            for count, name in sorted(cases, reverse=turn % 2 == 1):
                spec = specs[count]
                settings = (*_equal(count), "partition.device_type=cpu", *ORDERS[name.removesuffix(", profile")])
                if name.endswith("profile"):
                    settings = (*settings, f"partition.profile={profiles[count]}")
                seconds[count, name].append(_run(spec, settings, count, micro_batches, folder))
                if turn == 0:
                    found = Planner(spec, settings).plan().prediction
                    depths[count, name] = [program.depth for program in found.programs], found.placement.words
            click.echo(f"turn {turn + 1} of {rounds}", err=True)
    rows = []
    for count, name in product(processes, SPLIT):
        whole, split = seconds[count, "1f1b"], seconds[count, name]
        ratios = [one / other for one, other in zip(whole, split, strict=True)]
        rows.append({
            "processes": count,
            "split": name,
            "samples per second, 1f1b": round(batch / statistics.median(whole), 1),
            "samples per second, split": round(batch / statistics.median(split), 1),
            "split / 1f1b": round(statistics.median(ratios), 3),
            "least": round(min(ratios), 3),
            "largest": round(max(ratios), 3),
            "depths and words": {name: depths[count, name] for name in ("1f1b", name)},
        })  # fmt: skip
    click.echo(json.dumps(rows, indent=2))
    if write:
        setting = {"batch": batch, "channels": channels, "micro_batches": micro_batches, "rounds": rounds}
        click.echo(f"written: {save('split_backward_throughput', {**setting, 'rows': rows})}", err=True)


def _profile(spec: str, settings: tuple[str, ...], path: Path) -> Path:
    """Take a profile of this machine's processor."""
    command = [sys.executable, "-m", "petra_graph", "profile", spec, "--output", str(path)]
    command += [part for setting in settings for part in ("--set", setting)]
    subprocess.run(command, capture_output=True, check=True)
    return path


def _chain(folder: str, stages: int, batch: int, channels: int) -> str:
    """Write the specification of J equal stages, and return its path."""
    path = Path(folder, f"{stages}.toml")
    path.write_text(CHAIN.format(repeat=BLOCKS * stages, batch=batch, channels=channels))
    return str(path)


def _equal(stages: int) -> tuple[str, ...]:
    """Return the settings of equal stages, each on a device, with an update a micro-batch."""
    nodes = ["stem", *(f"rev.{block}" for block in range(BLOCKS * stages)), "head"]
    ends = [0, *(1 + BLOCKS * stage for stage in range(1, stages)), len(nodes)]
    cut = [nodes[begin:end] for begin, end in pairwise(ends)]
    return f"partition.stages={json.dumps(cut)}", f"partition.devices={stages}", "method.accumulation=1"


def _by_cost(stages: int) -> tuple[str, ...]:
    """Return the settings of stages that are cut by cost, each on a device, with an update a micro-batch."""
    return f"partition.stages={stages}", f"partition.devices={stages}", "method.accumulation=1"


def _run(spec: str, settings: tuple[str, ...], processes: int, micro_batches: int, folder: str) -> float:
    """Return the seconds of a micro-batch of a run that fills and drains."""
    more = (
        "run.epochs=1",
        f"run.micro_batches={micro_batches}",
        "run.evaluation_batches=1",
        f"run.directory={folder}/runs",
    )
    command = [sys.executable, "-m", "petra_graph", "run", spec, "--processes", str(processes), "--json"]
    command += [part for setting in (*settings, *more) for part in ("--set", setting)]
    summary = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return float(summary["seconds"]["training"] / summary["micro_batches"])


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
