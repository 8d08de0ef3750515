"""A run's directory, runs/20260131T120000Z-NAME-3f9a1c, with the files that petra_graph/README.md lists: none is half-written.

A reader finds it, without torch:

done, interrupted, failed     as its summary says
running                       a process holds the directory's lock
killed                        neither: no process was left that could write a summary
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import platform
import re
import secrets
import sys
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from attrs import define, frozen

from petra_graph.errors import RunFailed, SpecError
from petra_graph.plugins.loss_and_metric import Scale, scale_of, scales_in
from petra_graph.spec.load_spec import parse_override

METRICS, PLAN, SCALES, SUMMARY = "metrics.jsonl", "plan.json", "metrics.json", "summary.json"
LATEST, RUNS = "latest", "runs"  # the name of the latest run, and the folder where a specification names no other
_STAMP = re.compile(r"(\d{8}T\d{6}Z)-.+")


@contextmanager
def writing(path: Path, hint: str = "") -> Iterator[None]:
    """Within the context, a disk that refuses is a RunFailed that names the file."""
    try:
        yield
    except OSError as error:
        raise RunFailed(f"cannot write {path}: {error.strerror or error}", hint) from error


def create_run_directory(parent: str, name: str) -> Path:
    """Create a new directory below `parent`; raise RunFailed if it cannot be created."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    directory = run_directory(parent, f"{stamp}-{name}-{secrets.token_hex(3)}")
    with writing(directory, "set run.directory to a folder that can be written"):
        directory.mkdir(parents=True)
    return directory


def run_directory(parent: str, name: str) -> Path:
    """Return the directory below `parent` that this or another process has created."""
    return Path(os.path.expandvars(parent)).expanduser() / name


_held = set[int]()  # the directories that this process writes: forks, such as loaders of data, may live longer


def _let_go() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Within the context, keep other processes from writing a run's directory, where the file system has locks; else raise RunFailed."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    _held.add(descriptor)
    try:
        with suppress(OSError):  # a file system without locks
            for _ in range(4):
                with suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(0.02)  # `is_locked` holds it for a moment
            else:
                raise RunFailed(f"another process writes the run {directory}", "wait until it has ended, or stop it")
        yield
    finally:
        _held.remove(descriptor)
        os.close(descriptor)


def is_locked(directory: Path) -> bool:
    """Whether a process writes a run's directory now; False on a file system without locks."""
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that several readers may look at once
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` fill a temporary file, and put it in place of `path` in one step; if the disk refuses, raise RunFailed."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # root would put the file over /dev/null
        raise RunFailed(f"cannot write {path}: it is a device or a pipe")
    temporary = path.with_name(f".{path.name}.partial")
    with writing(path):
        try:
            temporary.touch()  # with the permissions that the user's umask gives; safetensors writes others
            mode = temporary.stat().st_mode
            write(temporary)
            temporary.chmod(mode)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_text(path: Path, text: str) -> None:
    """Write a text file whole; a file name in it that is not UTF-8 is written with escapes."""
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8", errors="backslashreplace"))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_output(path: Path, text: str) -> None:
    """Write a file that the caller asked for, with its folder; raise RunFailed if it cannot be written."""
    with writing(path, "choose another path"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def environment() -> dict[str, Any]:
    """Return versions, devices, threads and the command line, on which a run's numbers depend as well as on its specification."""
    import torch  # Reports read a run's directory without it.

    # What follows a key that looks like that of a secret, at the begin of a word or in a table, is not kept.
    hidden = r"(?is)((?:secret|token|passw|credential|api_?key)[\w.\-\"']*\s*=\s*)\S.*"
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version(name) for name in ("petra-graph", "torch", "numpy", "networkx")},
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda,
        "devices": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "command": [re.sub(hidden, r"\1***", word) for word in sys.argv],
    }


class Metrics:
    """A run's events, as lines and in its callbacks; a line is whole or not there, also in a run that is killed or whose disk is full."""

    def __init__(self, directory: Path, since: int | None = None) -> None:
        """Open a run's events; `since`: the length of the file from which to continue, and forget the events behind it."""
        self._path = directory / METRICS
        self._file = self._path.open("ab", buffering=0)
        if since is not None:
            self._file.truncate(since)
        self._callbacks, self._open = list[Callable[..., Any]](), ExitStack()
        self._open.enter_context(self._file)

    def hand_to(self, call: Callable[..., Any]) -> None:
        """Hand every event to a callback as well, by `call("record", ...)`, and `call("close")` at the end."""
        self._callbacks.append(call)
        self._open.callback(call, "close")

    @property
    def bytes(self) -> int:
        return self._file.seek(0, os.SEEK_END)

    def record(self, *, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Record values by name, such as "train/loss"; those that are not finite become null in the file."""
        values = {name: float(value) for name, value in values.items()}
        when = {"time": round(time.time(), 3), "epoch": epoch, "step": step}
        named = ({"name": name, "value": one if math.isfinite(one) else None} for name, one in values.items())
        left, end = "".join(json.dumps(when | one) + "\n" for one in named).encode(), self.bytes
        with writing(self._path):
            try:
                while left:  # the system may take a part
                    left = left[self._file.write(left) :]
            except OSError:
                with suppress(OSError):
                    self._file.truncate(end)
                raise
        for call in self._callbacks:
            call("record", epoch=epoch, step=step, values=values)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        # The error that ended the run is the first cause; a disk that refuses once more would only hide it.
        with suppress(Exception) if error else nullcontext():
            self._open.close()


def read_json(path: Path) -> dict[str, Any]:
    """Return what a run's JSON file holds, {} where there is no file; raise SpecError if it is damaged."""
    try:
        return dict(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise damaged(path, error) from None


def damaged(path: Path, error: Exception) -> SpecError:
    reason = getattr(error, "strerror", None) or f"{error}"
    return SpecError(f"{path} is damaged: {reason}", "restore it from a copy, or leave this run out")


# --- as a reader finds it ---


@frozen(kw_only=True)
class Point:
    """A metric's value; steps are micro-batches since the run's start."""

    epoch: int
    step: int
    value: float


@frozen(kw_only=True)
class Best:
    """The best value of the metric by which a run is judged, and the epoch that it is of."""

    metric: str
    value: float
    epoch: int


@define(kw_only=True)
class RecordedRun:
    """A run that has begun to train."""

    directory: Path
    name: str  # of the specification
    seed: int
    resolved: Mapping[str, Any]  # the specification with every default
    status: str  # as above
    summary: Mapping[str, Any]  # of its latest end; empty where it has none
    metrics: Mapping[str, Sequence[Point]]  # the events by name, in order
    scales: Mapping[str, Scale]  # how the values of its metrics are read
    epochs: int  # those that are done
    planned_epochs: int
    processes: Sequence[Mapping[str, Any]]  # what they have measured; () before the end

    @property
    def rate(self) -> float | None:
        """Samples a second: of all its training, or of its latest epoch where it has no summary."""
        return self.summary.get("samples_per_second") or self.last("samples_per_second")

    @property
    def best(self) -> Best | None:
        """The best value of `checkpoint.best`, or of top1 or else the loss of the evaluations; None where none was measured yet."""
        split = "validation" if "validation" in self.resolved.get("data", {}) else "test"
        usual = f"{split}/top1" if f"{split}/top1" in self.metrics else f"{split}/loss"
        metric = self.resolved.get("checkpoint", {}).get("best", usual)
        if not (points := self.metrics.get(metric)):
            return None
        smallest = scale_of(metric, self.scales).better == "lower"
        found = min(points, key=lambda point: point.value if smallest else -point.value)
        return Best(metric=metric, value=found.value, epoch=found.epoch)

    def last(self, metric: str) -> float | None:
        """Return the latest value of a metric."""
        return points[-1].value if (points := self.metrics.get(metric)) else None


def grown_bytes(process: Mapping[str, Any]) -> int:
    """Return what a process grew by, as it has measured itself; on GPUs, what torch's allocator has handed out there."""
    return sum(process["cuda_peak_bytes"].values()) or process["peak_bytes"] - process["peak_bytes_before"]


def status_of(directory: Path) -> str:
    """Return how a run stands, as above; raise SpecError if its summary is damaged."""
    # The lock is looked at first: a run that ends meanwhile has written its summary before it lets go.
    if is_locked(directory):
        return "running"
    return str(read_json(directory / SUMMARY).get("status", "killed"))


def read_run(directory: Path) -> RecordedRun:
    """Read a run's directory, also while it trains; raise SpecError if it is not a run's, or one of its files is damaged."""
    try:
        text, events = ((directory / name).read_bytes() for name in ("resolved.toml", METRICS))
    except OSError:
        message = f"{directory} is not a run's directory: it has no resolved.toml and metrics.jsonl"
        raise SpecError(message, "name one that `petra-graph run` has made") from None
    metrics, file = defaultdict[str, list[Point]](list), directory / METRICS
    try:
        for line in events[: events.rfind(b"\n") + 1].splitlines():  # the last one may be written at this moment
            event = json.loads(line)
            if event["value"] is not None:  # it was not finite
                point = Point(epoch=int(event["epoch"]), step=int(event["step"]), value=float(event["value"]))
                metrics[str(event["name"])].append(point)
        file = directory / "resolved.toml"
        resolved, file = tomllib.loads(text.decode()), directory
        status, summary = status_of(directory), read_json(directory / SUMMARY)
        return RecordedRun(
            directory=directory,
            name=resolved["name"],
            seed=int(resolved["run"]["seed"]),
            resolved=resolved,
            status=status,
            summary=summary,
            metrics=dict(metrics),
            scales=scales_in(read_json(directory / SCALES)),
            epochs=max((point.epoch for point in metrics.get("learning_rate", ())), default=0),
            planned_epochs=int(resolved["run"]["epochs"]),
            processes=(summary.get("measured") or {}).get("processes", ()),
        )
    except (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise damaged(file, error) from None


def find_run(name: str, parent: Path = Path(RUNS)) -> Path:
    """Return a run's directory: the one that is named, here or in `parent`, or "latest": the latest one in `parent`. Raises SpecError if it does not exist."""
    if name == LATEST:
        if not (found := [path for path in parent.glob("*") if path.is_dir() and is_run(path)]):
            raise SpecError(f"there is no run in {parent}", "give the directory of a run")
        return max(found, key=lambda one: (began(one), one.stat().st_mtime))
    directory = Path(name).expanduser()
    if not directory.exists():
        directory = parent / directory
    if not directory.is_dir():
        raise SpecError(f"there is no run directory {name}", "give the directory of a run, or `latest`")
    return directory


def directory_to_resume(resume: str, overrides: Iterable[str]) -> Path:
    """Return the directory of the run to resume, where "latest" is the latest below `run.directory`, as overrides set it."""
    given = {override.keys: str(override.value) for override in map(parse_override, overrides)}
    return find_run(resume, Path(given.get(("run", "directory"), RUNS)).expanduser())


def run_directories(folder: Path) -> list[Path]:
    """Return the directories of runs in a folder, or the folder itself where it is a run; a damaged one counts."""
    try:
        found = [folder] if is_run(folder) else sorted(folder.iterdir())
    except OSError as error:
        message = f"cannot read the folder {folder}: {error.strerror or error}"
        raise SpecError(message, "name the folder that holds runs: `run.directory` of their specs") from None
    return [path for path in found if path.is_dir() and is_run(path)]


def began(directory: Path) -> datetime:
    """Return when a run began, as its directory's name says; or when the directory of another name was written."""
    if stamp := _STAMP.fullmatch(directory.name):
        return datetime.strptime(f"{stamp[1]}+0000", "%Y%m%dT%H%M%SZ%z")
    return datetime.fromtimestamp(directory.stat().st_mtime, UTC)


def is_run(path: Path) -> bool:
    """Whether this is a run's directory; a damaged one is."""
    return _STAMP.fullmatch(path.name) is not None or (path / METRICS).is_file()
