"""Loggers and callbacks watch a rehearsal: two epochs of a run that has a directory, values, outputs and parameters, and no network."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
from attrs import frozen
from torch import Tensor

from petra_graph.registry.call_faults import public_methods
from petra_graph.registry.callback import Callback, Companion
from petra_graph.registry.contracts import CALLBACKS, LOGGERS, Declaration
from petra_graph.registry.listener import EpochEnded, Started
from petra_graph.registry.logger import Logger, RunInfo
from petra_graph.registry.misnamed import misnamed
from petra_graph.registry.registry import Plugin
from petra_graph.testing.any_trial import PluginTrial, as_plugin, read_given
from petra_graph.testing.broken_promise import BrokenPromise
from petra_graph.testing.generators import moved_since, states

_LINE = {"time": 0.0, "epoch": 1, "step": 2, "name": "train/loss", "value": 2.5}
_VALUES = {"train/loss": 1.5, "test/top1": 0.25, "stage1/seconds": 1e-9, "odd": math.inf, "none": math.nan}
_EPOCHS, _MICRO_BATCHES, _SAMPLES = 2, 4, 6


@frozen(kw_only=True)
class LoggerTrial(PluginTrial):
    """A logger with options."""

    kind: ClassVar[str] = "logger"
    group: ClassVar[str] = LOGGERS

    @staticmethod
    def of(logger: Declaration | Plugin, options: Mapping[str, Any] | object = None) -> LoggerTrial:
        """Make a trial of a declaration, with its `options` table."""
        plugin = as_plugin(LOGGERS, logger)
        return LoggerTrial(plugin=plugin, options=read_given(plugin, options))

    @contextmanager
    def run(self) -> Iterator[Path]:
        """Have the directory of a run whose `metrics.jsonl` has one line."""
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
    """Any values are recorded, also infinite ones and those that are no number, and several at one step."""
    with trial.run() as directory:
        logger = trial.open(directory)
        for step in (0, 4, 4, 8):
            logger.record(epoch=1 + step // 8, step=step, values=dict(_VALUES))
        logger.close()


def check_resumed(trial: LoggerTrial) -> None:
    """A run that goes on has a new logger in the same directory, which is given some steps again."""
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


@frozen(kw_only=True)
class CallbackTrial(PluginTrial):
    """A callback with options."""

    kind: ClassVar[str] = "callback"
    group: ClassVar[str] = CALLBACKS

    @staticmethod
    def of(callback: Declaration | Plugin, options: Mapping[str, Any] | object = None) -> CallbackTrial:
        """Make a trial of a declaration, with its `options` table."""
        plugin = as_plugin(CALLBACKS, callback)
        return CallbackTrial(plugin=plugin, options=read_given(plugin, options))

    @contextmanager
    def rehearsal(self) -> Iterator[_Rehearsal]:
        """Have a run with a new callback."""
        with tempfile.TemporaryDirectory() as folder:
            yield _Rehearsal(callback=self.build(self.options), directory=Path(folder), parameters=_parameters())


@frozen(kw_only=True, eq=False)
class _Rehearsal:
    callback: Callback
    directory: Path
    parameters: Mapping[str, Tensor]

    def begin(self) -> Companion | None:
        """Begin as a run does, and return the companion."""
        companion = self.callback.at_stage(self.parameters)
        self.callback.started(
            Started(
                name="rehearsal",
                directory=self.directory,
                epochs=_EPOCHS,
                micro_batches=_MICRO_BATCHES,
                batch=2,
                method="petra",
                schedule="1f1b",
                accumulation=1,
                stages=2,
                parameters=sum(parameter.numel() for parameter in self.parameters.values()),
            )
        )
        return companion

    def epoch(self, epoch: int, companion: Companion | None, *, trains: bool = True) -> tuple[Tensor, Tensor]:
        """Make an epoch's calls, and return the outputs and targets that the callback has been given."""
        for number in range(1, _MICRO_BATCHES + 1):
            if trains:
                self._update()
            if companion is not None:
                with torch.no_grad():
                    companion.updated((epoch - 1) * _MICRO_BATCHES + number)
            self.callback.trained(epoch, number, {"loss": 1.0 / number})
        outputs = torch.arange(3.0 * _SAMPLES).reshape(_SAMPLES, 3)
        targets = torch.arange(_SAMPLES) % 3
        self.callback.evaluating(epoch)
        for first in range(0, _SAMPLES, 4):
            rows = slice(first, first + 4)
            self.callback.evaluated(epoch, first, outputs[rows], targets[rows])
        means = {"loss": 1.0 / epoch, "top1": 0.5, "top5": 0.9}
        report = EpochEnded(epoch=epoch, train=means, test=means, samples_per_second=100.0, learning_rate=0.1)
        self.callback.epoch_ended(report)
        return outputs, targets

    def end(self, companion: Companion | None) -> None:
        """End as a run does."""
        kept = {} if companion is None else dict(companion.state())
        self.callback.ended({name: value.detach() for name, value in self.parameters.items()}, kept)
        self.callback.stopped()

    def _update(self) -> None:
        with torch.no_grad():
            for parameter in self.parameters.values():
                parameter.mul_(0.5)


def check_calls(trial: CallbackTrial) -> None:
    """A whole run's calls come back, and what the callback returns is of its type: text, tensors by name."""
    with trial.rehearsal() as run:
        for name, meant in misnamed(run.callback):
            remedy = (
                f"call it `{meant}`" if meant else f"a callback's methods are {', '.join(public_methods(Callback))}"
            )
            found = f"it defines `{name}`, which no run calls"
            raise BrokenPromise("calls", found, f"{remedy}; a method for its own use begins with an underscore")
        companion: Any = run.begin()
        if companion is not None and not isinstance(companion, Companion):
            found = f"at_stage returned {type(companion).__name__}"
            raise BrokenPromise("calls", found, "return a Companion, or None")
        for epoch in range(1, _EPOCHS + 1):
            run.epoch(epoch, companion)
            why: Any = run.callback.stops()
            if not isinstance(why, str):
                raise BrokenPromise("calls", f"stops returned {type(why).__name__}", 'return the reason, or ""')
        run.end(companion)


def check_changes(trial: CallbackTrial) -> None:
    """It changes no more of a run than its declaration says: `stops` needs "length", a write to parameters "weights"."""
    changes = trial.declaration.changes
    with trial.rehearsal() as run:
        before = states()
        companion = run.begin()
        values = {name: parameter.detach().clone() for name, parameter in run.parameters.items()}
        outputs, targets = run.epoch(1, companion, trains=False)
        run.end(companion)
        written = [name for name, value in values.items() if not torch.equal(value, run.parameters[name])]
        if written and changes != "weights":
            found = f'it wrote to parameters: its declaration says changes = "{changes}"'
            raise BrokenPromise("changes", found, 'declare changes = "weights", or copy them first')
        if outputs.tolist() != torch.arange(3.0 * _SAMPLES).reshape(_SAMPLES, 3).tolist() or targets.sum() != _SAMPLES:
            raise BrokenPromise("changes", "it changed outputs or targets of the evaluation", "copy them first")
        moved = moved_since(before)
        if moved:
            found = f"it moved the global generator of {' and '.join(moved)}, so that training is another one"
            raise BrokenPromise("changes", found, "draw with a generator of its own")


def check_callback_state(trial: CallbackTrial) -> None:
    """What `state` returns is JSON; a new callback and companion that are given it go on to the same state."""
    remedy = "return from state all that later calls rest on, as numbers, texts, lists and tables; read it in restore"
    with trial.rehearsal() as run, trial.rehearsal() as resumed:
        companion = run.begin()
        run.epoch(1, companion)
        try:
            saved = json.loads(json.dumps(run.callback.state()))
        except (TypeError, ValueError) as error:
            raise BrokenPromise("state", f"it is not JSON: {error}", remedy) from error
        kept = {} if companion is None else {name: value.clone() for name, value in companion.state().items()}
        with torch.no_grad():
            for name, parameter in resumed.parameters.items():
                parameter.copy_(run.parameters[name])
        again = resumed.begin()
        if saved is not None:
            resumed.callback.restore(saved)
        if again is not None and kept:
            again.restore({name: value.clone() for name, value in kept.items()})
        _expect_same(companion, again, "state", remedy)
        for one, of_one in ((run, companion), (resumed, again)):
            one.epoch(2, of_one)
        _expect_same(companion, again, "state", remedy)
        for one, of_one in ((run, companion), (resumed, again)):
            one.end(of_one)


def _expect_same(one: Companion | None, other: Companion | None, promise: str, remedy: str) -> None:
    if one is None or other is None:
        return
    expected, found = one.state(), other.state()
    if set(expected) != set(found) or any(not torch.equal(value, found[name]) for name, value in expected.items()):
        raise BrokenPromise(
            promise, "a companion that goes on has other tensors than one that was not interrupted", remedy
        )


def _parameters() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"node/weight": (3, 2), "node/bias": (3,)}
    return {name: torch.randn(shape, generator=generator).requires_grad_() for name, shape in shapes.items()}
