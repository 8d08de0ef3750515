"""Train the rows of a study, each by one `petra-graph sweep`: what is finished is not repeated.

    python tools/studies/study.py table2 --set data.options.root=~/data --jobs 3
    python tools/studies/study.py table4 --set data.options.root=~/data/cifar10-images --seeds 2
    python tools/studies/study.py delay --set data.options.root=input.txt --row muon --set optimizer.options.lr=2e-3 --seeds 3

A study is a TOML file in this folder: a specification, what all rows set and what all vary, and the rows, each with what it sets
itself. The runs of a row are in OUTPUT/ROW, and the same command continues what was interrupted or killed, from the last epoch.
OUTPUT/STUDY.json has the status of each run, and its losses and accuracies after each epoch. Values on the command line come
after those of the file; a key that is set is not varied. Needs petra-graph-studies.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

HERE = Path(__file__).parent
STUDIES = ("delay", "rival", "table2", "table4")
METRICS = ("train/loss", "test/loss", "test/top1")


@click.command()
@click.argument("study", type=click.Choice(STUDIES))
@click.argument("varied", nargs=-1, metavar="[KEY=A,B,...]...")
@click.option("--row", "rows", multiple=True, help="Rows; default: all, in the order of the file.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A value for all runs.")
@click.option("--seeds", default=1, show_default=True, help="Seeds 0, 1, ... of each setting.")
@click.option("--jobs", default=1, show_default=True, help="Rows at a time, each a training of one thread.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Default: runs/STUDY.")
def main(
    study: str,
    varied: Sequence[str],
    rows: Sequence[str],
    settings: Sequence[str],
    seeds: int,
    jobs: int,
    output: Path | None,
) -> None:
    """Train rows of a study, and write what they gave."""
    listed = tomllib.loads((HERE / f"{study}.toml").read_text())
    chosen = rows or tuple(listed["rows"])
    if unknown := set(chosen) - set(listed["rows"]):
        raise click.UsageError(f"no row {', '.join(unknown)}; rows: {', '.join(listed['rows'])}")
    folder = output or Path("runs") / study
    commands = {name: [*command(listed, name, varied, settings, folder), "--seeds", str(seeds)] for name in chosen}
    with ThreadPoolExecutor(jobs) as pool:
        found = dict(zip(chosen, pool.map(carried_out, commands.values()), strict=True))
    path = folder / f"{study}.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**before, **found}, indent=1) + "\n")
    for row, runs in found.items():
        for name, run in runs.items():
            last = ", ".join(f"{metric} {values[-1]:.4g}" for metric, values in run["metrics"].items() if values)
            click.echo(f"{row}, {name}: {run['status']} {last}")
    if any(run["status"] != "done" for runs in found.values() for run in runs.values()):
        raise SystemExit(1)


def command(
    listed: Mapping[str, Any], row: str, varied: Sequence[str], settings: Sequence[str], folder: Path
) -> list[str]:
    """Return the sweep of a row."""
    own = listed["rows"][row]
    fixed = by_key([*listed.get("set", ()), *own["set"], *settings])
    several = by_key([*listed.get("vary", ()), *varied])
    places = {"checkpoint.every": 'checkpoint.every="1 epoch"', "run.directory": f"run.directory={folder / row}"}
    words = [sys.executable, "-m", "petra_graph", "sweep", own.get("spec", listed["spec"]), "--json"]
    words += [text for key, text in several.items() if key not in fixed]
    return [*words, *(word for text in {**places, **fixed}.values() for word in ("--set", text))]


def by_key(texts: Sequence[str]) -> dict[str, str]:
    """Return texts KEY=VALUE by key; the last one of a key counts, and stands where it was written."""
    found: dict[str, str] = {}
    for text in texts:
        key = text.partition("=")[0]
        found.pop(key, None)
        found[key] = text
    return found


def carried_out(words: Sequence[str]) -> dict[str, Any]:
    """Carry a sweep out, and return its runs by their combinations; one that was refused has said why."""
    said = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False).stdout
    if not said:
        raise click.ClickException(f"not carried out: {shlex.join(words[2:])}")
    runs = json.loads(said)["runs"]
    return {one["combination"]: {"status": one["status"], "metrics": dict(series(one["directory"]))} for one in runs}


def series(directory: str) -> Iterator[tuple[str, list[float]]]:
    """Yield a run's losses and accuracies, one of each after every epoch."""
    file = Path(directory, "metrics.jsonl")
    events = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    for name in METRICS:
        yield name, [event["value"] for event in events if event["name"] == name]


if __name__ == "__main__":
    main()
