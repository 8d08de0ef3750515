"""Whether `plan --compare` recommends the best that the planner can name: brute force over methods, schedules, stages, replicas and what nodes keep.

    python -m tools.studies.advice FOLDER --write

For RevNet50 and a GPT on 1, 2, 4, 8 and 16 devices of three kinds, by their data sheets. Every configuration averages the samples of the
specification's own update. None may be faster than the recommended one, no later and no larger. So where that one is not late, those that
are late whatever their cut are counted, and not planned. A case that is in the folder is not planned again. Devices that differ are not
tried: `--compare` names no replicas for them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, Literal

import click
from attrs import evolve
from petra_graph_report.compare.compare_plans import compare, figures

from petra_graph.errors import NoFeasiblePlan, SpecError
from petra_graph.planning.plan_spec import Planner
from petra_graph.planning.share_devices import clip_by_stage, replace_method
from petra_graph.program.method import METHODS
from petra_graph.record.run_directory import environment
from petra_graph.spec.model import Spec
from tools.studies.study import write_results

GPT = (
    "callback=[]",
    "data.options.context=1024",
    "architecture.options={layers = 24, heads = 32, width = 4096}",
    "data.batch=8",
)
NETWORKS: Mapping[str, tuple[str, Sequence[str], Sequence[int]]] = {
    "RevNet50": ("specs/revnet50_imagenet.toml", (), (1, 2)),
    "GPT": ("plugins/petra-graph-transformers/specs/gpt_stdlib.toml", GPT, (1,)),
}
"""Each with its settings, and the stages on a device that are tried: a refusal of the GPT's with two takes ten seconds."""
COUNTS = (1, 2, 4, 8, 16)
KINDS = ("a100-40gb", "rtx4090", "t4")
_MORE = 1.02
"""Figures up to this ratio are the same: predictions are not surer, and the search's cuts differ by less."""
_KEEPS: Sequence[Literal["auto"] | None] = (None, "auto")


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--network", "networks", multiple=True, type=click.Choice(list(NETWORKS)), help="Default: all.")
@click.option("--devices", "counts", multiple=True, type=int, help="Default: 1, 2, 4, 8 and 16.")
@click.option("--kind", "kinds", multiple=True, help="Default: a100-40gb, rtx4090 and t4.")
@click.option("--write/--no-write", default=False, help="Keep the summary in tools/studies/results.")
def main(folder: Path, networks: Sequence[str], counts: Sequence[int], kinds: Sequence[str], write: bool) -> None:
    """Plan every configuration of every case, and compare the best of them with the recommendation."""
    folder.mkdir(parents=True, exist_ok=True)
    cases = {}
    for name, count, kind in product(networks or NETWORKS, counts or COUNTS, kinds or KINDS):
        path = folder / f"{name}-{count}-{kind}.json"
        if not path.exists():
            path.write_text(json.dumps(plan_case(name, count, kind)))
        cases[f"{name}, {count} {kind}"] = found = json.loads(path.read_text())
        click.echo(f"{name}, {count} {kind}: {json.dumps(found)}")
    if write:
        setting = {key: value for key, value in environment().items() if key != "command"}
        now = datetime.now(UTC).isoformat(timespec="seconds")
        path = write_results(
            Path(__file__).parent / "results", "advice", {"date": now, "cases": cases, "environment": setting}
        )
        click.echo(f"written: {path}", err=True)
    sys.exit(any(found["better"] for found in cases.values()))


def plan_case(name: str, count: int, kind: str) -> dict[str, Any]:
    """Return the recommendation for a network on `count` devices of a kind, the configurations that are better, and how many there are."""
    path, settings, hosted = NETWORKS[name]
    planner = Planner(
        path,
        (*settings, f"partition.devices={count}", f"partition.stages={count}", f'partition.device_type="{kind}"'),
    )
    document = compare(planner)
    at = document["recommended"]
    chosen = document["rows"][at] if at is not None else None
    every = list(configurations(planner.spec, hosted))
    hopeful = [spec for spec in every if chosen is None or chosen["staleness"] > 0 or not is_late(spec)]
    planned = [found for spec in hopeful if (found := _planned(planner, spec)) is not None]
    fitting = [found for found in planned if found["fits"] is not False]
    return {
        "recommended": chosen and {"set": chosen["set"], **_measures(chosen)},
        "late": len(every) - len(hopeful),
        "configurations": len(planned),
        "fit": len(fitting),
        "better": [found for found in fitting if chosen is None or is_better(found, chosen)],
    }


def configurations(spec: Spec, hosted: Sequence[int]) -> Iterator[Spec]:
    """Yield every method, schedule, number of replicas and of stages, and what nodes keep, with the samples of the specification's update.

    One stage has depth 1, whatever its schedule is called.
    """
    devices, samples = spec.partition.devices, spec.data.batch * spec.method.accumulation
    assert isinstance(devices, int)
    for replicas in (number for number in range(1, devices + 1) if not devices % number):
        batch = spec.data.batch
        accumulation, left = divmod(samples, batch * replicas)
        if left:
            accumulation, (batch, left) = 1, divmod(samples, replicas)
        if left:
            continue
        each = devices // replicas
        for method, stages, keep in product(METHODS.values(), [each * on_one for on_one in hosted], _KEEPS):
            for schedule in method.schedules if stages > 1 else method.schedules[:1]:
                table = evolve(
                    replace_method(spec.method, method.name, schedule),
                    keep=keep,
                    accumulation=accumulation,
                )
                yield evolve(
                    spec,
                    method=table,
                    partition=evolve(spec.partition, replicas=replicas, devices=each, stages=stages),
                    data=evolve(spec.data, batch=batch),
                    optimizer=clip_by_stage(spec.optimizer),
                )


def is_late(spec: Spec) -> bool:
    """Whether updates are late in any cut of a specification into its stages."""
    method = METHODS[spec.method.name]
    return method.flush == "drain" and spec.method.schedule in {"lockstep", "1f1b"} and spec.partition.stages != 1


def is_better(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether one configuration is faster than another one, no later and no larger."""
    return bool(
        one["samples_per_second"] > _MORE * other["samples_per_second"]
        and one["staleness"] <= other["staleness"]
        and one["memory_peak"] <= _MORE * other["memory_peak"]
    )


def _planned(planner: Planner, spec: Spec) -> dict[str, Any] | None:
    try:
        plan = planner.plan(spec)
    except (NoFeasiblePlan, SpecError):
        return None
    method, partition = spec.method, spec.partition
    return {
        "method": method.name,
        "schedule": method.schedule,
        "keep": method.keep,
        "stages": partition.stages,
        "replicas": partition.replicas,
        **_measures(figures(plan)),
    }


def _measures(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("samples_per_second", "staleness", "memory_peak", "fits")}


if __name__ == "__main__":
    main()
