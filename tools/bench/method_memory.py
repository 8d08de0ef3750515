"""Peak memory of the eight methods on one RevNet, measured, beside the order that theory gives.

Theory counts what each method keeps between a stage's forward and its backward (PETRA table 1, and its like for the
flushing methods): micro-batches in flight times the graph, the input, or nothing; and copies of parameters.

    in flight    depth(j) of the schedule; with a flush never more than k
    copies       ceil(staleness / k) where the backward uses the forward's parameters

All run with the same k. Peaks are each stage's own, summed: every stage as if on a device of its own. They also have
what theory leaves out: what an operation holds while it runs, and the messages in channels, which grow with the distance
between stages that a schedule allows. So besides the whole order, the inequalities that no such part can turn are checked,
and the two parts are printed.
"""

from __future__ import annotations

from typing import Any

import attrs
import click
import torch
from network import costs_of, prepared, save, stage_peaks

from petra_graph.compiler.memory.pipeline_memory import stage_memory
from petra_graph.program.node_costs import CostTable
from petra_graph.program.stage_bytes import summed
from petra_graph.program.stage_program import Segment, StageProgram

METHODS = {
    "reversible-backprop": "sequential",
    "backprop": "sequential",
    "petra": "lockstep",
    "delayed-reconstructed": "lockstep",
    "dsp": "lockstep",
    "pipedream": "lockstep",
    "1f1b-flush": "1f1b",
    "gpipe": "fill-drain",
}
ALWAYS = (
    ("reversible-backprop", "backprop"),
    ("backprop", "1f1b-flush"),
    ("1f1b-flush", "gpipe"),
    ("reversible-backprop", "petra"),
    ("petra", "delayed-reconstructed"),
    ("petra", "dsp"),
    ("delayed-reconstructed", "pipedream"),
    ("dsp", "pipedream"),
)
"""What holds on every network: the first keeps no more than the second."""


@click.command()
@click.option("--spec", default="specs/revnet18_quarter_cifar10.toml", show_default=True)
@click.option("--batch", default=16, show_default=True, help="Samples in a micro-batch.")
@click.option("--accumulation", default=4, show_default=True, help="Micro-batches in one update (k).")
@click.option("--threads", default=1, show_default=True)
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(spec: str, batch: int, accumulation: int, threads: int, write: bool) -> None:
    torch.set_num_threads(threads)
    rows = {
        method: _row(spec, batch, accumulation, method=method, schedule=schedule)
        for method, schedule in METHODS.items()
    }
    by_theory = sorted(rows, key=lambda method: rows[method]["theory"])
    by_measurement = sorted(rows, key=lambda method: rows[method]["measured"])
    for method in by_measurement:
        row = rows[method]
        click.echo(
            f"{method:22} {row['schedule']:10} measured {row['measured'] / 2**20:8.1f} MiB   "
            f"predicted {row['predicted'] / 2**20:8.1f}   theory {row['theory'] / 2**20:8.1f}   "
            f"working {row['predicted parts']['working'] / 2**20:6.1f}   channels {row['predicted parts']['channels'] / 2**20:6.1f}"
        )
    broken = [pair for pair in ALWAYS if rows[pair[0]]["measured"] > rows[pair[1]]["measured"]]
    click.echo(f"theory's order:   {' < '.join(by_theory)}")
    click.echo(f"measured order:   {' < '.join(by_measurement)}")
    click.echo(
        f"the same order: {by_theory == by_measurement}; inequalities that always hold, broken: {broken or 'none'}"
    )
    if write:
        result = {
            "spec": spec,
            "batch": batch,
            "accumulation": accumulation,
            "bytes": rows,
            "theory's order": by_theory,
            "measured order": by_measurement,
            "the same order": by_theory == by_measurement,
            "inequalities broken": broken,
        }
        click.echo(f"written: {save('method_memory', result)}", err=True)


def _row(spec: str, batch: int, accumulation: int, *, method: str, schedule: str) -> dict[str, Any]:
    ready = prepared(
        spec,
        "data.name=random",
        "data.options.shape=[3, 32, 32]",
        "data.options.classes=10",
        "data.options.train=1024",
        f"data.batch={batch}",
        f"method.name={method}",
        f"method.schedule={schedule}",
        f"method.accumulation={accumulation}",
    )
    programs, costs = ready.programs, costs_of(ready)
    micro_batches = 2 * max(program.depth for program in programs) + 3 * accumulation
    measured = stage_peaks(ready, micro_batches)
    predicted = summed(stage_memory(programs, costs, micro_batches=micro_batches))
    return {
        "schedule": schedule,
        "measured": sum(measured),
        "largest stage": max(measured),
        "predicted": predicted.total,
        "predicted parts": attrs.asdict(predicted),
        "theory": sum(_theory(program, costs) for program in programs),
    }


def _theory(program: StageProgram, costs: CostTable) -> int:
    in_flight = min(program.depth, program.accumulation) if program.flush == "window" else program.depth
    copies = 0 if program.flush == "window" else -(-(program.depth - 1) // program.accumulation)
    return sum(
        costs.nodes[name].parameter_bytes + costs.nodes[name].gradient_bytes + costs.nodes[name].optimizer_bytes
        for name in program.nodes
    ) + sum(_kept(segment, costs, in_flight, copies) for segment in program.segments if segment.kind != "head")


def _kept(segment: Segment, costs: CostTable, in_flight: int, copies: int) -> int:
    nodes = [costs.nodes[name] for name in segment.nodes]
    inputs = sum(nodes[0].input_bytes)
    match segment.keeps:
        case "graph":
            one = inputs + sum(node.work["record"].kept_bytes + sum(node.output_bytes) for node in nodes)
        case "input":
            one = inputs
        case "nothing":
            one = 0
    stored = copies * sum(node.parameter_bytes for node in nodes) if segment.backward == "stored" else 0
    return in_flight * one + stored


if __name__ == "__main__":
    main()
