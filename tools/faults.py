"""Faults at random moments: signals, kills, resumed or not, stops, suspensions, joins, lost launchers and readers, full disks, strangers.

    python tools/faults.py --count 10 --processes 1 --processes 4

Each trial starts a run in a folder of its own, does one thing to it, and compares what came of it with what should: exit
code, message, summary, and what is left (processes, shared memory, half-written files). A row is printed for every trial
that is not as it should be, then a table by kind. The exit code is 1 where any trial failed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import click
from attrs import define, field, frozen

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
_LIMIT_SECONDS = 90.0
_START_SECONDS = 8.0
"""Within which a run starts on a quiet machine."""


@define
class Run:
    """A command line at work in a folder of its own."""

    folder: Path
    shared: set[Path] = field(factory=lambda: set(Path("/dev/shm").iterdir()))
    processes: list[subprocess.Popen[bytes]] = field(factory=list)

    def start(
        self, *arguments: str, text: str = SPEC, file_bytes: int | None = None, **variables: str
    ) -> subprocess.Popen[bytes]:
        """Start one process of `petra-graph run`; the system refuses files of more than `file_bytes`."""
        (self.folder / "faults.toml").write_text(text)
        with (self.folder / f"said{len(self.processes)}.txt").open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "petra_graph", "run", "faults.toml", *arguments],
                cwd=self.folder,
                stdout=said,
                stderr=said,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables},
            )
        if file_bytes is not None:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
        self.processes.append(process)
        return process

    @property
    def said(self) -> str:
        """All that the processes printed."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("said*.txt")))

    @property
    def trains(self) -> bool:
        """Whether an epoch has ended."""
        return "train loss" in self.said

    def until_it_trains(self) -> None:
        """Wait for the first epoch's end."""
        end = time.monotonic() + _LIMIT_SECONDS
        while not self.trains and time.monotonic() < end and self.processes[0].poll() is None:
            time.sleep(0.05)

    @property
    def lines_written(self) -> int:
        """Lines of metrics so far."""
        return sum(path.read_bytes().count(b"\n") for path in self.folder.glob("runs/*/metrics.jsonl"))

    def codes(self) -> list[int | None]:
        """Wait for all processes, and return their exit codes; None where one does not end."""
        end = time.monotonic() + _LIMIT_SECONDS
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
        return [process.returncode for process in self.processes]

    def ranks(self) -> list[int]:
        """Return the processes that a launcher has started here."""
        return sorted(process for process in at_work_in(self.folder) if process not in {p.pid for p in self.processes})

    def statuses(self) -> list[str]:
        """Return the status of each run directory, "none" where there is no whole summary."""
        return [status_of(directory) for directory in self.folder.glob("runs/*")]

    def left(self) -> list[str]:
        """Return what is left: processes, shared memory, half-written files."""
        end = time.monotonic() + 5
        while (found := at_work_in(self.folder)) and time.monotonic() < end:
            time.sleep(0.1)
        shared = [path.name for path in set(Path("/dev/shm").iterdir()) - self.shared]
        partial = [path.name for path in self.folder.rglob("*.partial")]
        return [*(f"process {process}" for process in found), *shared, *partial]

    def end(self) -> None:
        """End whatever is still there."""
        for number in [*at_work_in(self.folder), *(p.pid for p in self.processes if p.poll() is None)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        for process in self.processes:
            process.wait()


@contextlib.contextmanager
def run_in_a_folder() -> Iterator[Run]:
    with tempfile.TemporaryDirectory() as name:
        run = Run(Path(name).resolve())
        try:
            yield run
        finally:
            run.end()


def at_work_in(folder: Path) -> list[int]:
    """Return the processes whose current folder it is."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink() == folder:
                found.append(int(process.name))
    return found


def status_of(directory: Path) -> str:
    """Return a run's status, "none" where its summary is not there, or not whole."""
    try:
        summary = json.loads((directory / "summary.json").read_text())
    except (OSError, ValueError):
        return "none"
    return str(summary["status"])


@frozen(kw_only=True)
class Outcome:
    """What came of a trial."""

    what: str
    """What was done."""
    faults: tuple[str, ...]
    """What is not as it should be."""
    moments: tuple[str, ...] = ()
    """At which a rank was killed, where that was chosen."""


def judged(
    run: Run, what: str, *, codes: set[int | None], statuses: set[str], says: str = "", lines: int | None = None
) -> Outcome:
    """Compare what came of a run with what should.

    Args:
        run: whose processes are about to end.
        what: was done to it.
        codes: exit codes that are right.
        statuses: those of run directories that are right.
        says: a text that it must have printed.
        lines: how many lines that name a rank it may print at most.
    """
    found = []
    if not set(got := run.codes()) <= codes:
        found.append(f"exit codes {got}")
    if not set(got_statuses := run.statuses()) <= statuses:
        found.append(f"statuses {got_statuses}")
    if left := run.left():
        found.append(f"left {', '.join(left)}")
    said = run.said
    if "Traceback" in said:
        found.append(f"a traceback: {said.strip().splitlines()[-1]}")
    if says not in said:
        found.append(f"no {says!r} in {said[-300:]!r}")
    named = [line for line in said.splitlines() if line.startswith("rank ")]
    if lines is not None and len(named) > lines:
        found.append(f"{len(named)} messages: {named}")
    return Outcome(what=what, faults=tuple(found))


# --- kinds ------------------------------------------------------------------------------------------------------------


def a_signal(dice: random.Random, processes: int) -> Outcome:
    """Ask to stop, at any moment from the start on, once or twice."""
    number = dice.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    after, twice = 0.3 + dice.random() * 1.5 * _START_SECONDS, dice.random() < 0.3
    with run_in_a_folder() as run:
        launcher = run.start("--processes", str(processes))
        time.sleep(after)
        launcher.send_signal(number)
        if twice:
            time.sleep(dice.random())
            launcher.send_signal(number)
        what = f"{number.name}{' twice' * twice} after {after:.2f} s"
        return judged(run, what, codes={130}, statuses={"interrupted"})


def a_signal_to_a_rank(dice: random.Random, processes: int) -> Outcome:
    """Ask one of several processes to stop."""
    number = dice.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    with run_in_a_folder() as run:
        run.start("--processes", str(processes))
        run.until_it_trains()
        time.sleep(dice.random())
        os.kill(dice.choice(run.ranks()), number)
        return judged(run, f"{number.name} to a rank", codes={130}, statuses={"interrupted"})


def a_kill(dice: random.Random, processes: int) -> Outcome:
    """Kill one of several processes."""
    with run_in_a_folder() as run:
        run.start("--processes", str(processes))
        run.until_it_trains()
        time.sleep(dice.random() * 3)
        os.kill(dice.choice(run.ranks()), signal.SIGKILL)
        return judged(run, "SIGKILL to a rank", codes={1}, statuses={"failed"}, says="without a word", lines=1)


MOMENTS = ("fill", "drain", "evaluation", "writing")
_MARKER = '''\
import os
import torch
from petra_graph.blocks import Buffered


class Marker(Buffered):
    """Hands samples on, and writes down where in its epoch the run is: forwards of training since the latest evaluation."""

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.forwards = 0

    def forward(self, x):
        if torch.is_grad_enabled():  # a backward's recomputation
            return (x,)
        self.forwards = self.forwards + 1 if self.training else 0
        with open(f"mark.{os.getpid()}", "w") as file:
            file.write(str(self.forwards))
        os.replace(file.name, "mark")
        return (x,)
'''
_MARKED = SPEC.replace("[[graph.node]]", '[[graph.node]]\nname = "marker"\nblock = "moments:Marker"\n[[graph.node]]', 1)
_MICRO_BATCHES, _STAGES = 512 // 16, 7
_RESUMED = ("--set", "run.epochs=40", "--set", "run.log_every=5", "--set", "optimizer.options.momentum=0.9")


def a_resume(dice: random.Random, processes: int) -> Outcome:
    """Kill a rank while the pipeline fills or drains, evaluates, or writes a checkpoint; the run must end as if nothing had happened."""
    moments = [dice.choice(MOMENTS) for _ in range(dice.randrange(1, 4))]
    with run_in_a_folder() as run:
        every = f"checkpoint.every={dice.choice((7, 25, 60))} updates"
        (run.folder / "moments.py").write_text(_MARKER)
        arguments = ("--processes", str(processes), "--max-restarts", "9", *_RESUMED, "--set", every)
        launcher = run.start(*arguments, text=_MARKED)
        hit = []
        for moment in moments:
            before, end = run.lines_written + dice.randrange(20, 80), time.monotonic() + _LIMIT_SECONDS
            while run.lines_written < before and launcher.poll() is None and time.monotonic() < end:
                time.sleep(0.01)
            ranks = run.ranks()
            while ranks and launcher.poll() is None and time.monotonic() < end:
                if moment_of(run) == moment:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(dice.choice(ranks), signal.SIGKILL)
                        hit.append(moment)
                    break
                time.sleep(0.0005)
        what = f"killed at {', '.join(hit)}; {every}"
        outcome = judged(run, what, codes={0}, statuses={"done"})
        found = next((result_of(path) for path in run.folder.glob("runs/*") if status_of(path) == "done"), None)
        differs = [] if found == _uninterrupted() else ["other weights or events than those of the uninterrupted run"]
        return Outcome(what=what, faults=(*outcome.faults, *differs), moments=tuple(hit))


def moment_of(run: Run) -> str:
    """Return what a run with a marker does, as well as its files tell; a pipeline that is full returns ""."""
    if list(run.folder.glob("runs/*/checkpoints/.*.writing")):
        return "writing"
    forwards = int((run.folder / "mark").read_text())
    if forwards == 0:
        return "evaluation"
    return "fill" if forwards < _STAGES else "drain" if forwards == _MICRO_BATCHES else ""


@functools.cache
def _uninterrupted() -> tuple[bytes, tuple[object, ...]]:
    with run_in_a_folder() as run:
        (run.folder / "moments.py").write_text(_MARKER)
        run.start(*_RESUMED, text=_MARKED)
        run.codes()
        (directory,) = run.folder.glob("runs/*")
        return result_of(directory)


def result_of(directory: Path) -> tuple[bytes, tuple[object, ...]]:
    """Return a run's weights, and its events but for times and throughput."""
    events = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    kept = ((event["epoch"], event["step"], event["name"], event["value"]) for event in events)
    return (directory / "weights.safetensors").read_bytes(), tuple(
        one for one in kept if one[2] != "samples_per_second"
    )


def a_stop(dice: random.Random, processes: int) -> Outcome:
    """Stop one of several processes for longer than the watchdog allows."""
    with run_in_a_folder() as run:
        run.start("--processes", str(processes), "--set", "run.watchdog=3")
        run.until_it_trains()
        time.sleep(dice.random())
        stopped = dice.choice(run.ranks())
        os.kill(stopped, signal.SIGSTOP)
        began = time.monotonic()
        while run.processes[0].poll() is None and time.monotonic() < began + 60:
            time.sleep(0.1)
        with contextlib.suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGCONT)
        return judged(run, "SIGSTOP to a rank", codes={1}, statuses={"failed"}, lines=1)


def a_suspension(dice: random.Random, processes: int) -> Outcome:
    """Suspend the whole job, at any moment from the start on, for longer than any limit; wake its processes in any order."""
    after, seconds = 0.3 + dice.random() * 2 * _START_SECONDS, 31 + dice.random() * 5
    with run_in_a_folder() as run:
        launcher = run.start("--processes", str(processes), "--set", "run.watchdog=20")
        time.sleep(after)
        began = run.trains
        job = [launcher.pid, *run.ranks()]
        dice.shuffle(job)
        for process in job:
            os.kill(process, signal.SIGSTOP)
        time.sleep(seconds)
        dice.shuffle(job)
        for process in job:
            os.kill(process, signal.SIGCONT)
            time.sleep(dice.random() * 2)
        run.until_it_trains()
        before, end = run.lines_written, time.monotonic() + 40
        while run.lines_written < before + 20 and launcher.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        stalled = [] if run.lines_written >= before + 20 else ["the run has stopped"]
        launcher.send_signal(signal.SIGINT)
        what = f"suspended {'in training' if began else 'at the start'} after {after:.2f} s for {seconds:.1f} s"
        outcome = judged(run, what, codes={130}, statuses={"interrupted"})
        return Outcome(what=what, faults=(*stalled, *outcome.faults))


def a_lost_launcher(dice: random.Random, processes: int) -> Outcome:
    """Kill the launcher, at any moment from the start on; its ranks must not live on."""
    after = 0.3 + dice.random() * 1.5 * _START_SECONDS
    with run_in_a_folder() as run:
        launcher = run.start("--processes", str(processes))
        time.sleep(after)
        launcher.kill()
        launcher.wait()
        end = time.monotonic() + 40
        while at_work_in(run.folder) and time.monotonic() < end:
            time.sleep(0.1)
        return judged(run, f"launcher killed after {after:.2f} s", codes={-9}, statuses={"failed"})


def a_join(dice: random.Random, processes: int) -> Outcome:
    """Start ranks of which one does not come, comes twice, or goes to another port."""
    kind = dice.choice(("missing", "twice", "port"))
    with run_in_a_folder() as run:
        port = 20_000 + dice.randrange(10_000)
        for rank in range(processes):
            if kind == "missing" and rank == processes - 1:
                continue
            wrong = kind == "port" and rank == processes - 1
            variables = {
                "RANK": "0" if kind == "twice" and rank == processes - 1 else str(rank),
                "WORLD_SIZE": str(processes),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port + wrong),
                "PETRA_GRAPH_JOIN_SECONDS": "10",
            }
            run.start(file_bytes=None, **variables)
        return judged(run, f"join: {kind}", codes={1, 2}, statuses=set())


def a_client(_: random.Random, processes: int) -> Outcome:
    """Connect at the machine's outer address, where nothing may listen."""
    with run_in_a_folder() as run:
        run.start("--processes", str(processes))
        run.until_it_trains()
        reached = []
        ports = listening([process.pid for process in run.processes] + run.ranks())
        for address, number in itertools.product(outer_addresses(), ports):
            with contextlib.suppress(OSError), socket.create_connection((address, number), timeout=2):
                reached.append(f"{address}:{number} listens")
        run.processes[0].send_signal(signal.SIGINT)
        outcome = judged(run, "a client at the outer address", codes={130}, statuses={"interrupted"})
        return Outcome(what=outcome.what, faults=(*reached, *outcome.faults))


def listening(processes: Sequence[int]) -> list[int]:
    """Return the ports at which processes listen, on whatever address."""
    sockets = set()
    for process in processes:
        for descriptor in Path(f"/proc/{process}/fd").glob("*"):
            with contextlib.suppress(OSError):
                sockets.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:  # LISTEN
                found.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(found)


def outer_addresses() -> list[str]:
    """Return the addresses of this machine that others reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
        towards.connect(("192.0.2.1", 9))  # of no machine; nothing is sent
        return [str(towards.getsockname()[0])]


def a_reader(dice: random.Random, processes: int) -> Outcome:
    """Let the reader of the output end after some lines; the training must go on."""
    lines = dice.randrange(6)
    with run_in_a_folder() as run:
        (run.folder / "faults.toml").write_text(SPEC.replace("1000000", "3"))
        program = f"{sys.executable} -m petra_graph run faults.toml --processes {processes}"
        done = subprocess.run(
            ["bash", "-c", f"{program} 2>&1 | head -n {lines} > /dev/null; exit ${{PIPESTATUS[0]}}"],
            check=False,
            cwd=run.folder,
            timeout=_LIMIT_SECONDS,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )
        outcome = judged(run, f"reader ends after {lines} lines", codes=set(), statuses={"done"})
        wrong = () if done.returncode == 0 and run.statuses() == ["done"] else (f"exit code {done.returncode}",)
        return Outcome(what=outcome.what, faults=(*outcome.faults, *wrong))


def a_disk(dice: random.Random, processes: int) -> Outcome:
    """Let the system refuse files beyond some size, as a full disk does."""
    most = dice.choice((512, 2_000, 6_000, 12_000))
    with run_in_a_folder() as run:
        run.start("--processes", str(processes), "--set", "run.log_every=1", file_bytes=most)
        # A channel's shared memory is a file to the system, too.
        run.codes()
        said = run.said
        refused = "no shared memory" if processes > 1 and "no shared memory" in said else "cannot write "
        return judged(run, f"files of {most} bytes", codes={1}, statuses={"failed", "none"}, says=refused)


Kind = Callable[[random.Random, int], Outcome]
ALONE: Mapping[str, Kind] = {"signal": a_signal, "reader": a_reader, "disk": a_disk}
"""Kinds for one process as for several."""
TOGETHER: Mapping[str, Kind] = {
    "signal to a rank": a_signal_to_a_rank,
    "kill": a_kill,
    "stop": a_stop,
    "suspension": a_suspension,
    "lost launcher": a_lost_launcher,
    "join": a_join,
    "client": a_client,
    "resume": a_resume,
}
"""Kinds for several processes."""


@click.command()
@click.option("--count", default=10, show_default=True, help="Trials of each kind.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice([*ALONE, *TOGETHER]), help="Default: all.")
@click.option("--processes", multiple=True, default=(1, 4), show_default=True, type=click.IntRange(1, 6))
@click.option("--seed", default=0, show_default=True)
def main(count: int, kinds: tuple[str, ...], processes: tuple[int, ...], seed: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # whoever started this may ignore them, and processes inherit that
    tried: Counter[tuple[str, int]] = Counter()
    failed: Counter[tuple[str, int]] = Counter()
    moments: Counter[str] = Counter()
    for many in processes:
        known = ALONE if many == 1 else {**ALONE, **TOGETHER}
        for name, kind in known.items():
            if kinds and name not in kinds:
                continue
            for trial in range(count):
                outcome = kind(random.Random(f"{seed} {name} {many} {trial}"), many)
                tried[name, many] += 1
                moments.update(outcome.moments)
                if outcome.faults:
                    failed[name, many] += 1
                    click.echo(f"{name}, {many} processes, {outcome.what}: {'; '.join(outcome.faults)}")
    click.echo("| kind | processes | tried | failed |\n|---|---|---|---|")
    for (name, many), times in tried.items():
        click.echo(f"| {name} | {many} | {times} | {failed[name, many]} |")
    if moments:
        click.echo("killed at: " + ", ".join(f"{moment} {moments[moment]}" for moment in MOMENTS))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
