"""A run's directory, runs/20260131T120000Z-NAME-3f9a1c, with the files that petra_graph/README.md lists: none is half-written."""

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from petra_graph.errors import RunFailed, SpecError, cannot_write

METRICS, PLAN, SCALES, SUMMARY = "metrics.jsonl", "plan.json", "metrics.json", "summary.json"


def create_run_directory(parent: str, name: str) -> Path:
    """Create a new directory below `parent`; raise RunFailed if it cannot be created."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    directory = run_directory(parent, f"{stamp}-{name}-{secrets.token_hex(3)}")
    try:
        directory.mkdir(parents=True)
    except OSError as error:
        raise cannot_write(directory, error, "set run.directory to a folder that can be written") from error
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
    try:
        temporary.touch()  # with the permissions that the user's umask gives; safetensors writes others
        mode = temporary.stat().st_mode
        write(temporary)
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise cannot_write(path, error) from error


def write_text(path: Path, text: str) -> None:
    """Write a text file whole; a file name in it that is not UTF-8 is written with escapes."""
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8", errors="backslashreplace"))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def make_folder_of(path: Path) -> None:
    """Make the folder of a file that the caller asked for; raise RunFailed if it cannot be made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error, "choose another path") from error


def write_output(path: Path, text: str) -> None:
    """Write a file that the caller asked for, with its folder; raise RunFailed if it cannot be written."""
    make_folder_of(path)
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise cannot_write(path, error, "choose another path") from error


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
        try:
            while left:  # the system may take a part
                left = left[self._file.write(left) :]
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(end)
            raise cannot_write(self._path, error) from error
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
