"""Where PETRA's row of `plan --compare` is the best: one thing changed at a time, of a GPT and of RevNet50 on eight devices.

    python -m tools.studies.cases --write

Every case is a command, by data sheets alone; nothing is run. The result has each command with what it recommends, PETRA's own fastest row,
and the fastest one whose gradients are not late.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from petra_graph_report.compare.compare_plans import compare

from petra_graph.planning.plan_spec import Planner
from petra_graph.record.run_directory import environment
from tools.studies.study import write_results

_EIGHT = ("partition.devices=8", "partition.stages=8")
_GPT = (
    "plugins/petra-graph-transformers/specs/gpt_stdlib.toml",
    ("callback=[]", "data.options.context=1024", *_EIGHT),
)
_REVNET = ("specs/revnet50_imagenet.toml", _EIGHT)


def _gpt(
    layers: int = 24, width: int = 4096, batch: int = 8, kind: str = "a100-40gb", *links: str
) -> tuple[str, Sequence[str]]:
    path, settings = _GPT
    size = (f"architecture.options={{layers = {layers}, heads = 32, width = {width}}}", f"data.batch={batch}")
    return path, (*settings, *size, f"partition.device_type={kind}", *links)


def _revnet(batch: int = 64, kind: str = "a100-40gb", *links: str) -> tuple[str, Sequence[str]]:
    path, settings = _REVNET
    return path, (*settings, f"data.batch={batch}", f"partition.device_type={kind}", *links)


_SLOW = ("partition.link_bandwidth=1e9", "partition.link_latency=5e-5")
"""Ten gigabits a second, between machines."""
CASES: Mapping[str, tuple[str, Sequence[str]]] = {
    "GPT, 24 layers of width 4,096, batch 8, A100 of 40 GB": _gpt(),
    "a quarter of the depth: 6 layers": _gpt(layers=6),
    "half of the width: 2,048": _gpt(width=2048),
    "half of the width, twice the depth": _gpt(layers=48, width=2048),
    "batch 1": _gpt(batch=1),
    "A100 of 80 GB": _gpt(kind="a100-80gb"),
    "RTX 4090 of 24 GB": _gpt(kind="rtx4090"),
    "links of 10 Gbit/s": _gpt(24, 4096, 8, "a100-40gb", *_SLOW),
    "half of the width, links of 10 Gbit/s": _gpt(24, 2048, 8, "a100-40gb", *_SLOW),
    "RevNet50, batch 64, A100 of 40 GB": _revnet(),
    "RevNet50, batch 64, T4 of 16 GB": _revnet(kind="t4"),
    "RevNet50, batch 512, A100 of 40 GB": _revnet(batch=512),
    "RevNet50, batch 8, links of 10 Gbit/s": _revnet(8, "a100-40gb", *_SLOW),
}


@click.command()
@click.option("--only", default="", help="Only cases that have this in their names.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/studies/results.")
def main(only: str, write: bool) -> None:
    """Compare the plans of every case, and print a row of each."""
    rows = []
    for name, (path, settings) in CASES.items():
        if only in name:
            rows.append(row := {"case": name, "command": _command(path, settings), **compare_case(path, settings)})
            click.echo(json.dumps(row))
    if write:
        setting = {key: value for key, value in environment().items() if key != "command"}
        now = datetime.now(UTC).isoformat(timespec="seconds")
        result = {"date": now, "cases": rows, "environment": setting}
        click.echo(f"written: {write_results(Path(__file__).parent / 'results', 'cases', result)}", err=True)


def compare_case(path: str, settings: Sequence[str]) -> dict[str, Any]:
    """Return the recommended row of a comparison, the fastest of PETRA's that fits, and the fastest that fits without staleness."""
    document = compare(Planner(path, settings))
    rows, at = document["rows"], document["recommended"]
    fitting = [row for row in rows if row["samples_per_second"] and row["fits"] is not False]

    def fastest(condition: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any] | None:
        found = max(filter(condition, fitting), key=lambda row: row["samples_per_second"], default=None)
        return None if found is None else dict(_shown(found))

    return {
        "recommended": None if at is None else dict(_shown(rows[at])),
        "petra": fastest(lambda row: row["method"] == "petra"),
        "exact": fastest(lambda row: row["staleness"] == 0),
    }


def _shown(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in ("method", "schedule", "keep", "replicas", "speedup", "staleness", "memory_peak"):
        yield key, row[key]


def _command(path: str, settings: Sequence[str]) -> str:
    changes = " ".join(f"--set '{one}'" for one in settings)
    return f"petra-graph plan {path} {changes} --compare"


if __name__ == "__main__":
    main()
