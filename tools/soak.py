"""A long run on several processes: whether memory and throughput stay as they were.

Prints, for the first and the last tenth of the time (the first minute left out, in which allocators settle), each process's
memory of its own (Pss: shared pages are divided among those who share them) and the throughput, and their changes.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from faults import SPEC

_EVERY_SECONDS = 2.0


@click.command()
@click.option("--minutes", default=30.0, show_default=True)
@click.option("--processes", default=2, show_default=True)
@click.option("--spec", type=click.Path(exists=True), help="Default: a small network on random images.")
@click.option("--settle", default=60.0, show_default=True, help="Seconds to leave out at the beginning.")
def main(minutes: float, processes: int, spec: str | None, settle: float) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = Path(spec).resolve() if spec else folder / "soak.toml"
        if not spec:
            path.write_text(SPEC.replace('"faults"', '"soak"').replace("train = 512", "train = 1024"))
        launcher = subprocess.Popen(
            [
                *(sys.executable, "-m", "petra_graph", "run", str(path), "--processes", str(processes)),
                *("--set", "run.epochs=1000000", "--set", "run.log_every=1000000"),
            ],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])},
        )
        samples = _watched(launcher, settle, settle + 60 * minutes)
        rates = _rates(folder)
    began, ended = samples[0][0], samples[-1][0]

    def change(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
        tenth = (ended - began) / 10
        first = statistics.fmean(value for at, value in pairs if at <= began + tenth)
        last = statistics.fmean(value for at, value in pairs if at >= ended - tenth)
        return {"first tenth": round(first, 1), "last tenth": round(last, 1), "ratio": round(last / first, 4)}

    result = {
        "seconds": round(ended - began),
        "exit code": launcher.returncode,
        "MiB of each process": [change([(at, found[rank]) for at, found in samples]) for rank in range(processes)],
        "samples per second": change([pair for pair in rates if began <= pair[0] <= ended]),
    }
    click.echo(json.dumps(result, indent=2))


def _watched(launcher: subprocess.Popen[bytes], settle: float, seconds: float) -> list[tuple[float, list[float]]]:
    """Return each process's MiB at every look; stop the run at the end."""
    began, found = time.monotonic(), list[tuple[float, list[float]]]()
    try:
        while time.monotonic() < began + seconds:
            time.sleep(_EVERY_SECONDS)
            if launcher.poll() is not None:
                message = f"the run has ended with exit code {launcher.returncode}"
                raise RuntimeError(message)
            workers = _children(launcher.pid)
            if time.monotonic() > began + settle:
                found.append((time.time(), [_mebibytes(worker) for worker in workers]))
        launcher.send_signal(signal.SIGINT)
        launcher.wait(60)
    finally:
        launcher.kill()
    return found


def _rates(folder: Path) -> list[tuple[float, float]]:
    (metrics,) = folder.glob("runs/*/metrics.jsonl")
    events = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [(event["time"], event["value"]) for event in events if event["name"] == "samples_per_second"]


def _mebibytes(process: int) -> float:
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    (kibibytes,) = [int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")]
    return kibibytes / 1024


def _children(parent: int) -> list[int]:
    def is_child(process: Path) -> bool:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1]) == parent

    return sorted(int(process.name) for process in Path("/proc").glob("[0-9]*") if _or_false(is_child, process))


def _or_false(test: Callable[[Path], bool], process: Path) -> bool:
    try:
        return test(process)
    except OSError:
        return False


if __name__ == "__main__":
    main()
