"""Kill processes of a run at random moments, and see how the others end.

Each time a run on several processes is started, one of its processes, drawn by chance, gets SIGKILL at a random moment, and
a row says how long the launcher took to end, with which exit code, what it said, and what it left: processes, shared memory,
half-written files. Any row that is not as it should be makes the exit code 1.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

SPEC = """\
name = "kills"
[[graph.node]]
name = "stem"
block = "conv-stem"
options = { channels = 8 }
[[graph.node]]
name = "block"
block = "rev-basic"
repeat = 4
[[graph.node]]
name = "head"
block = "pool-linear"
options = { outputs = 10 }
[method]
schedule = "1f1b"
[data]
name = "random"
batch = 16
options = { shape = [3, 16, 16], train = 512, test = 64 }
[run]
epochs = 1000000
"""
_LIMIT_SECONDS = 120.0


@click.command()
@click.option("--count", default=20, show_default=True, help="Kills.")
@click.option("--processes", default=2, show_default=True)
@click.option(
    "--latest", default=4.0, show_default=True, help="Seconds from the first epoch's end to the kill, at most."
)
@click.option("--seed", default=0, show_default=True)
def main(count: int, processes: int, latest: float, seed: int) -> None:
    dice = random.Random(seed)
    rows = [_killed(dice.randrange(processes), dice.random() * latest, processes) for _ in range(count)]
    click.echo("| rank | killed after | ended within | exit code | left | said |\n|---|---|---|---|---|---|")
    for row in rows:
        click.echo("| " + " | ".join(row[key] for key in ("rank", "after", "within", "code", "left", "said")) + " |")
    bad = [row for row in rows if row["code"] != "1" or row["left"] != "nothing" or "without a word" not in row["said"]]
    click.echo(f"{count - len(bad)} of {count} as they should be")
    sys.exit(bool(bad))


def _killed(rank: int, after: float, processes: int) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kills.toml").write_text(SPEC)
        shared = set(Path("/dev/shm").iterdir())
        with (folder / "said.txt").open("w") as said:
            launcher = subprocess.Popen(
                [sys.executable, "-m", "petra_graph", "run", "kills.toml", "--processes", str(processes)],
                cwd=folder,
                stdout=said,
                stderr=said,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])},
            )
        _until(lambda: "epoch" in (folder / "said.txt").read_text().partition("directory")[2], launcher)
        time.sleep(after)
        os.kill(_worker(launcher.pid, rank), signal.SIGKILL)
        began = time.monotonic()
        try:
            launcher.wait(_LIMIT_SECONDS)
        finally:
            launcher.kill()
        within = time.monotonic() - began
        time.sleep(0.5)
        left = _left(folder, set(Path("/dev/shm").iterdir()) - shared)
        lines = [line for line in (folder / "said.txt").read_text().splitlines() if line.startswith("rank")]
        return {
            "rank": str(rank),
            "after": f"{after:.2f} s",
            "within": f"{within:.1f} s",
            "code": str(launcher.returncode),
            "left": ", ".join(left) or "nothing",
            "said": lines[0] if lines else "nothing",
        }


def _left(folder: Path, shared: set[Path]) -> list[str]:
    found = [str(path) for path in shared]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder:
                found.append(f"process {process.name}")
        except OSError:
            continue
    found += [path.name for path in folder.rglob("*.partial")]
    for run in folder.glob("runs/*"):
        for file in ("summary.json", "failure.json"):
            try:
                json.loads((run / file).read_text())
            except (OSError, ValueError):
                found.append(f"no whole {file}")
    return found


def _worker(launcher: int, rank: int) -> int:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == launcher and f"RANK={rank}".encode() in variables:
            return int(process.name)
    message = f"rank {rank} is not there"
    raise RuntimeError(message)


def _until(condition: Callable[[], object], launcher: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _LIMIT_SECONDS
    while not condition():
        if launcher.poll() is not None or time.monotonic() > end:
            message = "the run did not begin"
            raise RuntimeError(message)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
