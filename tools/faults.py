"""Faults at random moments: signals, kills, resumed or not, stops, suspensions, lost launchers and readers, full disks.

    python tools/faults.py --count 10 --processes 1 --processes 4
    python tools/faults.py --soak 30 --processes 2

Each trial starts a run in a folder of its own, does one thing to it, and compares what came of it with what should: exit code,
message, summary, and what is left (processes, shared memory, half-written files). A row is printed for every trial that is not as it
should be, then a table by kind. `--soak` trains for so many minutes, and prints memory, descriptors and throughput of the first and
the last tenth. The exit code is 1 where any trial failed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import resource
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import click
from attrs import define, field

ROOT = Path(__file__).parents[1]
SPEC = """\
name = "faults"
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
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LIMIT_SECONDS, START_SECONDS = 180.0, 8.0
"""Within which a run ends, and within which it starts on a quiet machine."""
RESUMED = ("--set", "run.epochs=40", "--set", "run.log_every=5", "--set", "optimizer.options.momentum=0.9")


@define
class Run:
    """A command line at work in a folder of its own."""

    folder: Path
    shared: set[Path] = field(factory=lambda: set(Path("/dev/shm").iterdir()))
    launcher: subprocess.Popen[bytes] = field(init=False)

    def start(self, *arguments: str, file_bytes: int = -1, reader: str = "") -> None:
        """Start `petra-graph run`; the system refuses larger files than `file_bytes`, and a reader takes what it prints."""
        (self.folder / "faults.toml").write_text(SPEC)
        words = shlex.join([sys.executable, "-m", "petra_graph", "run", "faults.toml", *arguments])
        piped = f"{words} 2>&1 | {reader}; exit ${{PIPESTATUS[0]}}" if reader else f"exec {words}"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        with (self.folder / "said.txt").open("wb") as said:
            command = ["bash", "-c", piped]
            self.launcher = subprocess.Popen(command, cwd=self.folder, stdout=said, stderr=said, env=environment)
        if file_bytes >= 0:
            resource.prlimit(self.launcher.pid, resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    @property
    def said(self) -> str:
        return (self.folder / "said.txt").read_text(errors="replace")

    @property
    def lines_written(self) -> int:
        """Lines of metrics so far."""
        return sum(path.read_bytes().count(b"\n") for path in self.folder.glob("runs/*/metrics.jsonl"))

    def until(self, done: Callable[[], bool], seconds: float = LIMIT_SECONDS) -> bool:
        """Wait until something is so, or the run has ended; return whether it is."""
        end = time.monotonic() + seconds
        while not (so := done()) and self.launcher.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        return so

    def until_it_trains(self) -> None:
        self.until(lambda: "train loss" in self.said)

    def at_work(self) -> list[int]:
        """Return the processes whose current folder it is."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "cwd").readlink() == self.folder:
                    found.append(int(process.name))
        return found

    def ranks(self) -> list[int]:
        """Return the processes that a launcher has started here."""
        return sorted(set(self.at_work()) - {self.launcher.pid})

    def faults(
        self, *, codes: set[int | None], statuses: set[str], says: str = "", most_messages: int = 99
    ) -> list[str]:
        """Return what is not as it should be of a run that is about to end.

        Args:
            codes: exit codes that are right.
            statuses: of run directories that are right; "none" where there is no whole summary.
            says: a text that it must have printed.
            most_messages: how many lines that name a rank it may print.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.launcher.wait(LIMIT_SECONDS)
        gone = time.monotonic() + 5
        while (left := self.at_work()) and time.monotonic() < gone:
            time.sleep(0.1)
        remains = [f"process {process}" for process in left]
        remains += [path.name for path in set(Path("/dev/shm").iterdir()) - self.shared]
        remains += [path.name for path in self.folder.rglob("*.partial")]
        ended = {status_of(directory) for directory in self.folder.glob("runs/*")}
        messages = [line for line in self.said.splitlines() if line.startswith("rank ")]
        wrong = {
            f"exit code {self.launcher.returncode}": self.launcher.returncode not in codes,
            f"statuses {ended}": not ended <= statuses,
            f"left {remains}": bool(remains),
            f"a traceback, or no {says!r}, in {self.said[-300:]!r}": "Traceback" in self.said or says not in self.said,
            f"messages {messages}": len(messages) > most_messages,
        }
        return [text for text, is_so in wrong.items() if is_so]

    def end(self) -> None:
        for number in self.at_work():
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self.launcher.kill()
        self.launcher.wait()


@contextlib.contextmanager
def run_in_a_folder() -> Iterator[Run]:
    with tempfile.TemporaryDirectory() as name:
        run = Run(Path(name).resolve())
        try:
            yield run
        finally:
            run.end()


def status_of(directory: Path) -> str:
    try:
        return str(json.loads((directory / "summary.json").read_text())["status"])
    except (OSError, ValueError):
        return "none"


# --- kinds: each does one thing to a run, and returns what was done and what is not as it should be ----------------------

Kind = Callable[[random.Random, int, Run], tuple[str, Sequence[str]]]


def a_signal(dice: random.Random, processes: int, run: Run) -> tuple[str, Sequence[str]]:
    """Ask to stop, at any moment from the start on, once or twice."""
    number, after, twice = dice.choice(SIGNALS), 0.3 + dice.random() * 1.5 * START_SECONDS, dice.random() < 0.3
    run.start("--processes", str(processes))
    time.sleep(after)
    for _ in range(1 + twice):
        run.launcher.send_signal(number)
        time.sleep(dice.random() * twice)
    what = f"{number.name}{' twice' * twice} after {after:.2f} s"
    return what, run.faults(codes={130}, statuses={"interrupted"})


def a_reader(dice: random.Random, processes: int, run: Run) -> tuple[str, Sequence[str]]:
    """Let the reader of the output end after some lines; the training must go on."""
    lines = dice.randrange(6)
    run.start("--processes", str(processes), "--set", "run.epochs=3", reader=f"head -n {lines} > /dev/null")
    return f"reader ends after {lines} lines", run.faults(codes={0}, statuses={"done"})


def a_disk(dice: random.Random, processes: int, run: Run) -> tuple[str, Sequence[str]]:
    """Let the system refuse files beyond some size, as a full disk does; a channel's shared memory is a file as well."""
    most = dice.choice((512, 2_000, 6_000, 12_000))
    run.start("--processes", str(processes), "--set", "run.log_every=1", file_bytes=most)
    run.launcher.wait(LIMIT_SECONDS)
    says = "no shared memory" if "no shared memory" in run.said else "cannot write "
    return f"files of {most} bytes", run.faults(codes={1}, statuses={"failed", "none"}, says=says)


def a_signal_to_a_rank(dice: random.Random, processes: int, run: Run) -> tuple[str, Sequence[str]]:
    """Stop or kill one of several processes."""
    number = dice.choice((*SIGNALS, signal.SIGKILL))
    run.start("--processes", str(processes))
    run.until_it_trains()
    time.sleep(dice.random() * 3)
    os.kill(dice.choice(run.ranks()), number)
    killed = {"codes": {1}, "statuses": {"failed"}, "says": "without a word", "most_messages": 1}
    asked = {"codes": {130}, "statuses": {"interrupted"}}
    return f"{number.name} to a rank", run.faults(**(killed if number == signal.SIGKILL else asked))  # type: ignore[arg-type]


def a_frozen_rank(dice: random.Random, processes: int, run: Run) -> tuple[str, Sequence[str]]:
    """Stop one of several processes for longer than the watchdog allows."""
    run.start("--processes", str(processes), "--set", "run.watchdog=3")
    run.until_it_trains()
    time.sleep(dice.random())
    frozen = dice.choice(run.ranks())
    os.kill(frozen, signal.SIGSTOP)
    run.until(lambda: False, 60)
    with contextlib.suppress(ProcessLookupError):
        os.kill(frozen, signal.SIGCONT)
    return "SIGSTOP to a rank", run.faults(codes={1}, statuses={"failed"}, most_messages=1)


def a_suspension(dice: random.Random, processes: int, run: Run) -> tuple[str, Sequence[str]]:
    """Suspend the whole job, at any moment, for longer than any limit; wake its processes in any order."""
    after, seconds = 0.3 + dice.random() * 2 * START_SECONDS, 31 + dice.random() * 5
    run.start("--processes", str(processes), "--set", "run.watchdog=20")
    time.sleep(after)
    job = [run.launcher.pid, *run.ranks()]
    for number, between in ((signal.SIGSTOP, 0), (signal.SIGCONT, 2)):
        dice.shuffle(job)
        for process in job:
            os.kill(process, number)
            time.sleep(dice.random() * between)
        time.sleep(seconds if number == signal.SIGSTOP else 0)
    run.until_it_trains()
    before = run.lines_written
    stalled = [] if run.until(lambda: run.lines_written >= before + 20, 40) else ["the run has stopped"]
    run.launcher.send_signal(signal.SIGINT)
    what = f"suspended after {after:.2f} s for {seconds:.1f} s"
    return what, [*stalled, *run.faults(codes={130}, statuses={"interrupted"})]


def a_lost_launcher(dice: random.Random, processes: int, run: Run) -> tuple[str, Sequence[str]]:
    """Kill the launcher, at any moment from the start on; its ranks must not live on."""
    after = 0.3 + dice.random() * 1.5 * START_SECONDS
    run.start("--processes", str(processes))
    time.sleep(after)
    run.launcher.kill()
    end = time.monotonic() + 40
    while run.ranks() and time.monotonic() < end:
        time.sleep(0.1)
    return f"launcher killed after {after:.2f} s", run.faults(codes={-9}, statuses={"failed"})


def a_resume(dice: random.Random, processes: int, run: Run) -> tuple[str, Sequence[str]]:
    """Kill ranks again and again, some while a checkpoint is written; the run must end as if nothing had happened."""
    every = f"checkpoint.every={dice.choice((7, 25, 60))} updates"
    run.start("--processes", str(processes), "--max-restarts", "9", *RESUMED, "--set", every)
    hit = []
    for _ in range(dice.randrange(1, 4)):
        writing, before = dice.random() < 0.5, run.lines_written + dice.randrange(20, 80)
        moment = "runs/*/checkpoints/.*" if writing else "runs/*"
        if run.until(lambda: run.lines_written >= before and bool(list(run.folder.glob(moment))) and bool(run.ranks())):  # noqa: B023
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(dice.choice(run.ranks()), signal.SIGKILL)
                hit.append("writing" if writing else "training")
    wrong = run.faults(codes={0}, statuses={"done"})
    ended = {result_of(path) for path in run.folder.glob("runs/*")}
    differs = [] if ended == {uninterrupted()} else ["other weights or events than those of the uninterrupted run"]
    return f"killed while {', '.join(hit)}; {every}", [*wrong, *differs]


@functools.cache
def uninterrupted() -> tuple[object, ...]:
    with run_in_a_folder() as run:
        run.start(*RESUMED)
        run.launcher.wait()
        return result_of(next(run.folder.glob("runs/*")))


def result_of(directory: Path) -> tuple[object, ...]:
    """Return a run's weights, and its events but for times and throughput."""
    events = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    kept = ((event["epoch"], event["step"], event["name"], event["value"]) for event in events)
    weights = (directory / "weights.safetensors").read_bytes()
    return weights, *(one for one in kept if one[2] != "samples_per_second")


ALONE: Mapping[str, Kind] = {"signal": a_signal, "reader": a_reader, "disk": a_disk}
TOGETHER: Mapping[str, Kind] = {
    "signal to a rank": a_signal_to_a_rank,
    "frozen rank": a_frozen_rank,
    "suspension": a_suspension,
    "lost launcher": a_lost_launcher,
    "resume": a_resume,
}
"""Kinds for several processes alone."""


def soak(minutes: float, processes: int, settle: float = 20.0) -> dict[str, object]:
    """Train, look at each process every 2 seconds, and compare the first with the last tenth; `settle` seconds are left out."""
    with run_in_a_folder() as run:
        run.start("--processes", str(processes), "--set", "run.log_every=1000000")
        run.until_it_trains()
        time.sleep(settle)
        looks, began, end = list[dict[str, float]](), time.time(), time.monotonic() + 60 * minutes
        while time.monotonic() < end and run.launcher.poll() is None:
            work, before = run.ranks() or [run.launcher.pid], time.perf_counter()
            statistics.fmean(range(200_000))
            looks.append({"a fixed computation, ms": 1e3 * (time.perf_counter() - before)})
            for rank, process in enumerate(work):
                text = Path(f"/proc/{process}/smaps_rollup").read_text()
                kib = next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Anonymous:"))
                looks[-1][f"rank {rank}, anonymous MiB"] = kib / 1024
                looks[-1][f"rank {rank}, descriptors"] = len(list(Path(f"/proc/{process}/fd").iterdir()))
            time.sleep(2.0)
        events = [json.loads(line) for line in next(run.folder.glob("runs/*/metrics.jsonl")).read_text().splitlines()]
        rates = [one["value"] for one in events if one["name"] == "samples_per_second" and one["time"] > began]
        run.launcher.send_signal(signal.SIGINT)
        faults = run.faults(codes={130}, statuses={"interrupted"})
    series = {name: [look[name] for look in looks] for name in looks[0]} | {"samples per second": rates}
    tenths = {name: max(1, len(values) // 10) for name, values in series.items()}
    means = {
        name: [round(statistics.fmean(part), 1) for part in (values[: tenths[name]], values[-tenths[name] :])]
        for name, values in series.items()
    }
    return {**means, "faults": faults}


@click.command()
@click.option("--count", default=10, show_default=True, help="Trials of each kind.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice([*ALONE, *TOGETHER]), help="Default: all.")
@click.option("--processes", multiple=True, default=(1, 4), show_default=True, type=click.IntRange(1, 6))
@click.option("--seed", default=0, show_default=True)
@click.option("--soak", "minutes", type=float, metavar="MINUTES", help="Train so long instead.")
def main(count: int, kinds: Sequence[str], processes: Sequence[int], seed: int, minutes: float | None) -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)  # whoever started this may ignore them, and processes inherit that
    if minutes is not None:
        click.echo(json.dumps(soak(minutes, processes[0]), indent=1))
        return
    failed: Counter[tuple[str, int]] = Counter()
    for many in processes:
        for name, kind in (ALONE if many == 1 else {**ALONE, **TOGETHER}).items():
            for trial in range(count) if not kinds or name in kinds else ():
                with run_in_a_folder() as run:
                    what, faults = kind(random.Random(f"{seed} {name} {many} {trial}"), many, run)
                failed[name, many] += bool(faults)
                if faults:
                    click.echo(f"{name}, {many} processes, {what}: {'; '.join(faults)}")
    click.echo(f"| kind | processes | failed of {count} |\n|---|---|---|")
    for (name, many), times in failed.items():
        click.echo(f"| {name} | {many} | {times} |")
    sys.exit(bool(failed.total()))


if __name__ == "__main__":
    main()
