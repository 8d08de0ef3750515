"""One benchmark at two commits, in turns: the ratio of every number that it writes, in one invocation.

    python tools/before_after.py 66cb818 WORKTREE inline.py --rounds 3

Machines drift, so OLD and NEW take turns (OLD NEW, NEW OLD, ...), each with its own benchmark file in a checkout of its
own. The table has the medians of both and the median of the ratios of neighbouring turns, for every number that
`--write` keeps. A ratio of a benchmark's own ratios says most: these were taken against a baseline within a turn.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from same_bits import ROOT, WORKTREE, Side, check_installation, environment, installed, variables

RESULTS = ROOT / "tools/bench/results"
Numbers = dict[str, float]


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("old")
@click.argument("new")
@click.argument("benchmark")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--turns", default=3, show_default=True, help="Runs of the benchmark at each commit.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(old: str, new: str, benchmark: str, arguments: tuple[str, ...], turns: int, write: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        sides = {label: checkout(commit, Path(name, label)) for label, commit in (("old", old), ("new", new))}
        runs: dict[str, list[Numbers]] = {"old": [], "new": []}
        for turn in range(turns):
            for side in ("old", "new") if turn % 2 == 0 else ("new", "old"):
                runs[side].append(measured(sides[side], benchmark, arguments))
                click.echo(f"{side} {len(runs[side])}/{turns}", err=True)
    rows = list(compared(runs["old"], runs["new"]))
    for row in rows:
        click.echo(f"{row['number']:60} {row['old']:12.5g} {row['new']:12.5g} {row['ratio']:8.3f}")
    if write:
        now = datetime.now(UTC)
        found = {
            "date": now.isoformat(timespec="seconds"),
            **{label: side.description for label, side in sides.items()},
            "arguments": list(arguments),
            "turns": turns,
            "numbers": rows,
            "environment": environment(),
        }
        (RESULTS / f"before-after-{Path(benchmark).stem}-{now:%Y-%m-%d}.json").write_text(json.dumps(found, indent=2))


def checkout(commit: str, folder: Path) -> Side:
    """Install a commit into a folder, with its specifications and its own benchmarks."""
    side = installed(commit, folder)
    files = ["specs", "tools"]
    if commit in WORKTREE:
        command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *files]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
        for name in filter(None, listed):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    else:
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit, *files], check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    check_installation(side)
    return side


def measured(side: Side, benchmark: str, arguments: Sequence[str]) -> Numbers:
    """Run a benchmark once, and return the numbers that it wrote."""
    results = side.folder / "tools/bench/results"
    before = {path: path.read_bytes() for path in results.glob("*.json")}
    command = [sys.executable, str(side.folder / "tools/bench" / benchmark), *arguments, "--write"]
    subprocess.run(command, check=True, cwd=side.folder, env=variables(side), stdout=subprocess.DEVNULL)
    (written,) = (path for path in results.glob("*.json") if path.read_bytes() != before.get(path))
    return dict(numbers(json.loads(written.read_text())))


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a JSON document by their paths; the environment's are left out."""
    match value:
        case dict():
            for key, item in value.items():
                if key != "environment":
                    yield from numbers(item, f"{path}/{key}")
        case list():
            for index, item in enumerate(value):
                yield from numbers(item, f"{path}/{index}")
        case bool() | str() | None:
            return
        case _:
            yield path.removeprefix("/"), float(value)


def compared(old: Sequence[Numbers], new: Sequence[Numbers]) -> Iterator[dict[str, Any]]:
    """Yield the medians of each number that both commits have, and the median ratio of neighbouring turns."""
    for name in old[0]:
        if any(name not in run for run in (*old, *new)):
            continue
        pairs = [(one[name], other[name]) for one, other in zip(old, new, strict=True)]
        ratios = [after / before for before, after in pairs if before]
        yield {
            "number": name,
            "old": statistics.median(before for before, _ in pairs),
            "new": statistics.median(after for _, after in pairs),
            "ratio": statistics.median(ratios) if ratios else float("nan"),
        }


if __name__ == "__main__":
    main()
