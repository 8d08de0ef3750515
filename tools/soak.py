"""A long run on several processes: whether memory and throughput stay as they were.

Prints, for the first and the last tenth of the time (the first minute left out, in which allocators settle), each process's
anonymous memory, its memory with its share of shared pages (Pss), its open descriptors, and the throughput, and their changes.
A fixed computation is timed at every look, in this process, so that the machine's own drift shows.
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
from attrs import frozen
from faults import SPEC

_EVERY_SECONDS = 2.0


@click.command()
@click.option("--minutes", default=30.0, show_default=True)
@click.option("--processes", default=2, show_default=True)
@click.option("--spec", type=click.Path(exists=True), help="Default: a small network on random images.")
@click.option("--every", help="Interval between checkpoints, as in `10 s`. Default: none are written.")
@click.option("--settle", default=60.0, show_default=True, help="Seconds to leave out at the beginning.")
def main(minutes: float, processes: int, spec: str | None, every: str | None, settle: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # whoever started this may ignore it, and processes inherit that
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = Path(spec).resolve() if spec else folder / "soak.toml"
        if not spec:
            path.write_text(SPEC.replace('"faults"', '"soak"').replace("train = 512", "train = 1024"))
        launcher = subprocess.Popen(
            [
                *(sys.executable, "-m", "petra_graph", "run", str(path), "--processes", str(processes)),
                *("--set", "run.epochs=1000000", "--set", "run.log_every=1000000"),
                *(("--set", f"checkpoint.every={every}") if every else ()),
            ],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])},
        )
        samples = _watched(launcher, settle, settle + 60 * minutes)
        rates = _rates(folder)
    began, ended = samples[0].at, samples[-1].at

    def change(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
        tenth = (ended - began) / 10
        first = statistics.fmean(value for at, value in pairs if at <= began + tenth)
        last = statistics.fmean(value for at, value in pairs if at >= ended - tenth)
        return {"first tenth": round(first, 1), "last tenth": round(last, 1), "ratio": round(last / first, 4)}

    result = {
        "seconds": round(ended - began),
        "exit code": launcher.returncode,
        **{
            name: [change([(look.at, look.of_ranks[rank][index]) for look in samples]) for rank in range(processes)]
            for index, name in enumerate(("anonymous MiB", "Pss MiB", "descriptors"))
        },
        "a fixed computation, ms": change([(look.at, look.fixed_ms) for look in samples]),
        "samples per second": change([pair for pair in rates if began <= pair[0] <= ended]),
    }
    click.echo(json.dumps(result, indent=2))


@frozen
class _Look:
    at: float
    of_ranks: list[tuple[float, float, float]]
    """Of each process: anonymous MiB, Pss in MiB, descriptors."""
    fixed_ms: float


def _watched(launcher: subprocess.Popen[bytes], settle: float, seconds: float) -> list[_Look]:
    """Return what was seen at every look; stop the run at the end."""
    began, found = time.monotonic(), list[_Look]()
    try:
        while time.monotonic() < began + seconds:
            time.sleep(_EVERY_SECONDS)
            if launcher.poll() is not None:
                message = f"the run has ended with exit code {launcher.returncode}"
                raise RuntimeError(message)
            workers = _children(launcher.pid)
            if time.monotonic() > began + settle:
                found.append(_Look(time.time(), [_held(worker) for worker in workers], _fixed_ms()))
        launcher.send_signal(signal.SIGINT)
        launcher.wait(60)
    finally:
        launcher.kill()
    return found


def _rates(folder: Path) -> list[tuple[float, float]]:
    (metrics,) = folder.glob("runs/*/metrics.jsonl")
    events = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [(event["time"], event["value"]) for event in events if event["name"] == "samples_per_second"]


def _held(process: int) -> tuple[float, float, float]:
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    kibibytes = {
        name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in text.splitlines()[1:])
    }
    descriptors = len(list(Path(f"/proc/{process}/fd").iterdir()))
    return kibibytes["Anonymous"] / 1024, kibibytes["Pss"] / 1024, float(descriptors)


def _fixed_ms() -> float:
    """Return how long a computation takes that is always the same."""
    began, total = time.perf_counter(), 0
    for number in range(200_000):
        total ^= number * number
    return 1e3 * (time.perf_counter() - began)


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
