"""A logger watches a rehearsal: a run that has a directory and values, and no network."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from petra_graph.errors import SpecError
from petra_graph.kinds.generators import moved_since, states
from petra_graph.kinds.logger import LOGGER, Logger, RunInfo, missing_package
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_kind import PluginKind
from petra_graph_conformance.broken_promise import BrokenPromise
from petra_graph_conformance.declaration_promises import DECLARATION
from petra_graph_conformance.plugin_trial import PluginTrial
from petra_graph_conformance.promise import KindChecks, Promise

_LINE = {"time": 0.0, "epoch": 1, "step": 2, "name": "train/loss", "value": 2.5}


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
    """`build` returns a logger: it has `record` and `close`."""
    with trial.run() as directory:
        trial.open(directory).close()


def check_values(trial: LoggerTrial) -> None:
    """Any values are recorded, also infinite ones and those that are not numbers, and several at one step."""
    with trial.run() as directory:
        logger = trial.open(directory)
        for step in (0, 4, 4, 8):
            logger.record(epoch=1 + step // 8, step=step, values=dict(_VALUES))
        logger.close()


def check_resumed(trial: LoggerTrial) -> None:
    """A resumed run has a new logger in the same directory, which is given some steps again."""
    with trial.run() as directory:
        for resumed_at in (None, 4):
            logger = trial.open(directory, resumed_at)
            for step in (4, 8):
                logger.record(epoch=1, step=step, values=dict(_VALUES))
            logger.close()


def check_changes_nothing(trial: LoggerTrial) -> None:
    """The values that it is given, `metrics.jsonl` and the global generators stay as they are."""
    with trial.run() as directory:
        values, lines, before = dict(_VALUES), (directory / "metrics.jsonl").read_bytes(), states()
        logger = trial.open(directory)
        logger.record(epoch=1, step=4, values=values)
        logger.close()
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
        Promise("construction", check_logger_construction, before_run=True, foundation=True),
        Promise("values", check_values),
        Promise("resumed", check_resumed),
        Promise("changes nothing", check_changes_nothing),
    ),
    trial=LoggerTrial,
    trials=_trials,
)
