"""A logger watches a rehearsal: a run that has a directory and values, and no network."""

from __future__ import annotations

import json
import math
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from petra_graph.errors import SpecError
from petra_graph.kinds.logger import LOGGER, Logger, RunInfo, missing_package
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_kind import PluginKind
from petra_graph_conformance.broken_promise import BrokenPromise
from petra_graph_conformance.declaration_promises import DECLARATION, PACKAGE
from petra_graph_conformance.moved_generators import moved_since, states
from petra_graph_conformance.plugin_trial import PluginTrial
from petra_graph_conformance.promise import KindChecks, Promise

_LINE = {"time": 0.0, "epoch": 1, "step": 2, "name": "train/loss", "value": 2.5}
_STEPS = 40
"""Of a rehearsal, whose lines are many times those that a resumed run writes."""
_CLOSES_SECONDS = 5.0
_VALUES = {"train/loss": 1.5, "test/top1": 0.25, "stage1/seconds": 1e-9, "odd": math.inf, "none": math.nan}


@frozen(kw_only=True)
class LoggerTrial(PluginTrial):
    """A logger with options."""

    @staticmethod
    def of_kind() -> PluginKind:
        return LOGGER

    @contextmanager
    def run(self) -> Iterator[Path]:
        """Make the directory of a run, whose `metrics.jsonl` has one line, and remove it afterwards."""
        with tempfile.TemporaryDirectory() as folder:
            directory = Path(folder) / "run"
            directory.mkdir()
            (directory / "metrics.jsonl").write_text(json.dumps(_LINE) + "\n")
            yield directory

    def open(self, directory: Path, resumed_at: int | None = None) -> Logger:
        """Return the logger of a run."""
        run = RunInfo(directory=directory, name="rehearsal", spec={"name": "rehearsal"}, resumed_at=resumed_at)
        logger: Logger = self.build(self.options, run)
        return logger


def check_logger_construction(trial: LoggerTrial) -> None:
    """`build` returns a logger: it has `record` and `close`, which comes back."""
    with trial.run() as directory:
        _close(trial.open(directory))


def check_values(trial: LoggerTrial) -> None:
    """Any values are recorded, also infinite ones and those that are not numbers, and several at one step."""
    with trial.run() as directory:
        logger = trial.open(directory)
        for step in (0, 4, 4, 8):
            logger.record(epoch=1 + step // 8, step=step, values=dict(_VALUES))
        _close(logger)


def check_resumed(trial: LoggerTrial) -> None:
    """A resumed run has a new logger in the same directory, which is given some steps again, and keeps what was written before them."""
    resumed_at = _STEPS - 2
    with trial.run() as directory, trial.run() as other:
        _record(trial, directory, range(1, _STEPS))
        written = _sizes(directory)
        for one, before in ((directory, range(1, resumed_at)), (other, range(0))):
            lines = [json.dumps({**_LINE, "step": step, "value": _VALUES["train/loss"]}) for step in before]
            (one / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))  # it ends at the checkpoint
            _record(trial, one, range(resumed_at, _STEPS + 1), resumed_at)
        alone = _sizes(other)
        for name, size in _sizes(directory).items():
            if name in written and size < written[name] / 2 and size <= 2 * alone.get(name, 0):
                found = f"a resumed run's file {name!r} has {size:,} bytes, and had {written[name]:,} before: its lines are gone"
                raise BrokenPromise("resumed", found, 'open it with "a" where run.resumed_at is not None')
        if gone := sorted(written.keys() - _sizes(directory).keys()):
            raise BrokenPromise("resumed", f"a resumed run has removed {', '.join(gone)}", "leave what is there")


def _record(trial: LoggerTrial, directory: Path, steps: Sequence[int], resumed_at: int | None = None) -> None:
    logger = trial.open(directory, resumed_at)
    for step in steps:
        logger.record(epoch=1, step=step, values=dict(_VALUES))
    _close(logger)


def _sizes(directory: Path) -> dict[str, int]:
    """Return the sizes of the files that a logger has written, by their names."""
    files = {str(one.relative_to(directory)): one for one in directory.rglob("*") if one.is_file()}
    return {name: one.stat().st_size for name, one in files.items() if name != "metrics.jsonl"}


def _close(logger: Logger) -> None:
    """Close a logger, in a thread that may be left behind.

    Raises:
        BrokenPromise: it does not come back.
    """
    raised: list[BaseException] = []

    def close() -> None:
        try:
            logger.close()
        except BaseException as error:  # noqa: BLE001  it is raised again
            raised.append(error)

    thread = threading.Thread(target=close, name="logger to be closed", daemon=True)
    thread.start()
    thread.join(_CLOSES_SECONDS)
    if thread.is_alive():
        found = f"`close` has not come back after {_CLOSES_SECONDS:g} s, so that a run would not end"
        raise BrokenPromise(
            "construction", found, "end its threads and connections with a limit, as join(timeout) has one"
        )
    if raised:
        raise raised[0]


def check_changes_nothing(trial: LoggerTrial) -> None:
    """The values that it is given, `metrics.jsonl`, the global generators and the working directory stay as they are."""
    with trial.run() as directory:
        values, lines, before = dict(_VALUES), (directory / "metrics.jsonl").read_bytes(), states()
        beside = set(os.listdir())  # noqa: PTH208  names
        logger = trial.open(directory)
        logger.record(epoch=1, step=4, values=values)
        _close(logger)
        new = sorted(name for name in set(os.listdir()) - beside if name not in str(trial.options))  # noqa: PTH208
        if new:
            found = f"it wrote {', '.join(new)} to the working directory"
            raise BrokenPromise("changes nothing", found, "write to run.directory, or where an option of it says")
        moved = moved_since(before)
        if moved:
            found = f"it moved the global generator of {' and '.join(moved)}"
            raise BrokenPromise("changes nothing", found, "draw with a generator of its own")
        if repr(values) != repr(_VALUES):
            raise BrokenPromise("changes nothing", "it changed the values that it was given", "copy them first")
        if (directory / "metrics.jsonl").read_bytes() != lines:
            raise BrokenPromise("changes nothing", "it wrote to metrics.jsonl", "write to a file of its own name")


def _trials(plugin: Plugin, options: Any, _: Mapping[str, Any]) -> Sequence[LoggerTrial]:
    missing = missing_package(plugin)
    if missing is not None:
        raise SpecError(missing)
    return [LoggerTrial.of(plugin, options)]


LOGGER_CHECKS = KindChecks(
    kind=LOGGER,
    promises=(
        DECLARATION,
        PACKAGE,
        Promise("construction", check_logger_construction, run=False, foundation=True),
        Promise("values", check_values, run=False),
        Promise("resumed", check_resumed, run=False),
        Promise("changes nothing", check_changes_nothing, run=False),
    ),
    trial=LoggerTrial,
    trials=_trials,
)
