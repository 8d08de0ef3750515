"""Small whole runs for tests: a specification that trains on digits in a fraction of a second."""

import json
import resource
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from petra_graph.compiler.plan import Plan
from petra_graph.planning.plan_spec import Planner
from petra_graph.plugins.callback import EpochEnded, Listener, Started


def plan(given: str, overrides: Iterable[str] = ()) -> Plan:
    return Planner(given, overrides).plan()


SPEC = """\
name = "small"

[[graph.node]]
name = "stem"
block = "linear-stem"
options = { features = 12 }

[[graph.node]]
name = "rev"
block = "rev-mlp"
repeat = 2
options = { hidden = 12, dropout = 0.1 }

[[graph.node]]
name = "head"
block = "pool-linear"
options = { outputs = 10 }

[method]
schedule = "1f1b"
accumulation = 3

[optimizer]
options = { lr = 0.05 }

[data]
name = "digits"
batch = 128
options = { crop_padding = 1 }

[run]
epochs = 2
log_every = 4
"""
MICRO_BATCHES = 11
"""In an epoch: digits has 1,438 samples to train with."""
UPDATES = 4
"""In an epoch."""
FILES = {
    "data.json",
    "fingerprint.pt",
    "spec.toml",
    "resolved.toml",
    "env.json",
    "metrics.jsonl",
    "summary.json",
    "weights.safetensors",
}


def only_run(parent: Path | str = "runs") -> Path:
    (directory,) = Path(parent).iterdir()
    return directory


def events(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def recorded(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values by name, as callbacks have them, in the order in which they were recorded."""
    found: dict[str, list[tuple[int, float]]] = {}
    for event in events(directory):
        found.setdefault(event["name"], []).append((event["step"], event["value"]))
    return found


def without_times(directory: Path) -> list[tuple[Any, ...]]:
    """A run's events, but for times and throughput."""
    found = [event for event in events(directory) if event["name"] != "samples_per_second"]
    return [(event["epoch"], event["step"], event["name"], event["value"]) for event in found]


def result_of(directory: Path | str) -> tuple[object, ...]:
    """All that a run has computed: its tensors, events and summary, without what follows from where, when and how often it was started."""
    other = {"seconds", "samples_per_second", "measured", "planned_and_measured"}
    other |= {"directory", "resumed_from", "processes", "checkpoint"}
    tensors = {path.name: path.read_bytes() for path in Path(directory).glob("*.safetensors")}
    summary = {key: value for key, value in summary_of(Path(directory)).items() if key not in other}
    return tensors, without_times(Path(directory)), summary


def summary_of(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return found


def weights_bytes(directory: Path | str) -> bytes:
    return (Path(directory) / "weights.safetensors").read_bytes()


def files_of(directory: Path) -> set[str]:
    """All that a run left."""
    return {path.name for path in directory.iterdir()}


def overrides(*settings: str) -> list[str]:
    """The words that set these on a command line."""
    return [word for one in settings for word in ("--set", one)]


def named(kind: str, *names: str) -> str:
    """Arrays of tables with these names and no options."""
    return "".join(f'\n[[{kind}]]\nname = "{name}"\n' for name in names)


class StopAt(Listener):
    """Asks the run once to stop, as Ctrl-C would: at "trained 2/5", "evaluating 1" or "ended 1"."""

    def __init__(self, call: str) -> None:
        self.call = call

    def trained(self, epoch: int, micro_batches: int, _means: Mapping[str, float]) -> None:
        self._seen(f"trained {epoch}/{micro_batches}")

    def evaluating(self, epoch: int) -> None:
        self._seen(f"evaluating {epoch}")

    def epoch_ended(self, report: EpochEnded) -> None:
        self._seen(f"ended {report.epoch}")

    def _seen(self, call: str) -> None:
        if call == self.call:
            signal.raise_signal(signal.SIGINT)


class FakeListener(Listener):
    """Notes what it is told of the run, of its progress and of its end."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.run: Started | None = None

    def started(self, run: Started) -> None:
        self.run = run

    def trained(self, epoch: int, micro_batches: int, _means: Mapping[str, float]) -> None:
        self.calls.append(f"trained {epoch}/{micro_batches}")

    def stopped(self) -> None:
        self.calls.append("stopped")


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """Let the system refuse any file that grows beyond so many bytes, as a full disk would.

    No longer than needed: pytest's own output may be a file too.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
