"""The progress of a run, for people: a live bar on a terminal, plain lines elsewhere, and its summary.

Progress goes to stderr.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column

from petra_graph.errors import printable
from petra_graph.plugins.callback import EpochEnded, Listener, Started
from petra_graph.plugins.loss_and_metric import scales_in
from petra_graph.report.metric_text import Scales, chosen_on, numbers
from petra_graph.report.planned_and_measured import what_the_plan_said
from petra_graph.units import bounded, clock, noun, plural, rate

_REFRESH_SECONDS = 0.2
_NARROW = 100
"""Columns of a terminal on which the bar is short."""
_LINE_SECONDS = 60.0
"""The seconds between the lines of a log within an epoch: a few hundred lines a night."""


def progress(stream: TextIO | None = None) -> Listener:
    """Return the listener that suits the stream, which is stderr where no stream is given."""
    stream = stream or sys.stderr
    return LiveProgress(stream) if stream.isatty() else PlainProgress(stream)


class PlainProgress(Listener):
    """Lines for logs: the run, each of its epochs, and within a long epoch its state once a minute.

    Args:
        stream: where the lines go.
        clock: returns seconds since some moment.
    """

    _run: Started

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._written = self._began = self._epoch_began = 0.0
        self._before_in_epoch = 0
        """The micro-batches of the epoch that were done before the run was resumed: they took none of its time."""

    def started(self, run: Started) -> None:
        self._run = run
        self._began = self._epoch_began = self._clock()
        self._before_in_epoch = (run.resumed_at or 0) % run.micro_batches
        self._print(heading(run))

    def trained(self, epoch: int, micro_batches: int, means: Mapping[str, float]) -> None:
        """Write a line where the latest one is old."""
        now, run = self._clock(), self._run
        if now - self._written >= _LINE_SECONDS and micro_batches < run.micro_batches:
            done = f"{micro_batches:,} of {run.micro_batches:,} micro-batches"
            pace = self._pace(now, epoch, micro_batches)
            self._print(f"{_title(epoch, run.epochs)}   {done}   train {numbers(means)}   {pace}")

    def warned(self, text: str) -> None:
        self._print(f"warning: {text}")

    def evaluating(self, epoch: int) -> None:
        if self._clock() - self._written >= _LINE_SECONDS:
            self._print(f"{_title(epoch, self._run.epochs)}   evaluating")

    def epoch_ended(self, report: EpochEnded) -> None:
        self._print(epoch_line(report, self._run))
        self._epoch_began, self._before_in_epoch = self._clock(), 0

    def testing(self, weights: str) -> None:
        self._print(f"test of the {weights}")

    def _pace(self, now: float, epoch: int, micro_batches: int) -> str:
        """Return the speed in this epoch, and the time that the whole run still takes, its evaluations included."""
        run, before = self._run, self._run.resumed_at or 0
        done, total = (epoch - 1) * run.micro_batches + micro_batches, run.epochs * run.micro_batches
        speed = (micro_batches - self._before_in_epoch) * run.batch / max(now - self._epoch_began, _REFRESH_SECONDS)
        left = (now - self._began) * (total - done) / max(done - before, 1)
        return f"{rate(speed)}  ETA {clock(left)}"

    def _print(self, text: str) -> None:
        self._written = self._clock()
        print(printable(text), file=self._stream, flush=True)


class LiveProgress(PlainProgress):
    """A bar for the epoch under way, and a line above it for each finished epoch and each warning."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream, clock)
        self._console = Console(force_jupyter=False, file=stream)
        self._bar_width = 24 if self._console.width > _NARROW else 10
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=self._bar_width),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=self._console,
            transient=True,
        )
        self._epoch: TaskID | None = None

    def started(self, run: Started) -> None:
        super().started(run)
        self._bar.start()

    def trained(self, epoch: int, micro_batches: int, means: Mapping[str, float]) -> None:
        run, now = self._run, self._clock()
        title = f"epoch {epoch}/{run.epochs}"
        if self._epoch is None:
            self._epoch = self._bar.add_task(title, total=run.micro_batches, numbers="")
        elif now - self._written < _REFRESH_SECONDS and micro_batches < run.micro_batches:
            return
        self._written = now
        left = self._console.width - len(f"{title} {micro_batches}/{run.micro_batches} ") - self._bar_width - 2
        text = printable(f"{self._pace(now, epoch, micro_batches)}  {numbers(means)}")
        self._bar.update(self._epoch, completed=micro_batches, numbers=bounded(text, max(1, left)))

    def evaluating(self, epoch: int) -> None:
        if self._epoch is not None:
            self._bar.update(self._epoch, description=f"evaluating after epoch {epoch}")

    def epoch_ended(self, report: EpochEnded) -> None:
        if self._epoch is not None:
            self._bar.remove_task(self._epoch)
            self._epoch = None
        super().epoch_ended(report)

    def stopped(self) -> None:
        """Leave the terminal as it was."""
        self._bar.stop()

    def _print(self, text: str) -> None:
        self._console.print(printable(text), highlight=False, markup=False, soft_wrap=True)


def heading(run: Started) -> str:
    """Describe a run in a line, and name its directory in another."""
    shared = f" on {run.processes} processes" if run.processes > 1 else ""
    return (
        f"{run.name}: {run.parameters:,} parameters in {plural(run.stages, 'stage')}{shared}; {run.method}, {run.schedule}, "
        f"accumulation {run.accumulation}; {run.epochs} {noun(run.epochs, 'epoch')} of "
        f"{run.micro_batches} {noun(run.micro_batches, 'micro-batch', 'es')} of {run.batch}\n"
        f"run directory: {run.directory}"
        + ("" if run.resumed_at is None else f"; continues before micro-batch {run.resumed_at:,}")
        + "".join(f"\n{text}" for text in run.notes)
        + "".join(f"\nwarning: {text}" for text in run.warnings)
    )


def epoch_line(report: EpochEnded, run: Started) -> str:
    found = report.evaluated
    evaluated = f"   {run.evaluates} {_evaluation(found, run.tested, run.metrics)}" if found else ""
    return (
        f"{_title(report.epoch, run.epochs)}   train {numbers(report.train)}{evaluated}"
        f"   lr {report.learning_rate:.4g}   {rate(report.samples_per_second)}"
    )


def _title(epoch: int, epochs: int) -> str:
    return f"epoch {epoch:>{len(str(epochs))}}/{epochs}"


def _evaluation(means: Mapping[str, float], part: str, scales: Scales) -> str:
    """Write the result of an evaluation, which has read a part of the samples, or all."""
    return numbers(means, scales) + (f" ({part})" if part else "")


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """Describe a run's summary in a few lines."""
    done = f"epochs: {summary['epochs']}, micro-batches: {summary['micro_batches']:,}"
    lines = [f"{summary['name']}: {summary['status']} ({done})"]
    scales, tested = scales_in(summary.get("metrics")), summary.get("test_weights")
    if "stopped_early" in summary:
        reason = summary["stopped_early"]
        caveat = f" ({chosen_on('test/')})" if ": test/" in reason else ""
        lines.append(f"stopped early {reason}{caveat}")
    if summary.get("validation"):
        of = ", with the last weights" if tested and tested["weights"] == "best" else ""
        lines.append(f"validation {_evaluation(summary['validation'], summary.get('validated', ''), scales)}{of}")
    if summary["test"]:
        of = f", with the {tested['weights']} weights, of epoch {tested['epoch']}" if tested else ""
        lines.append(f"test {_evaluation(summary['test'], summary.get('tested', ''), scales)}{of}")
    if found := summary.get("best"):
        split, _, name = found["metric"].partition("/")
        value = numbers({name: found["value"]}, scales)
        caveat = f"{chosen_on(found['metric'])}; " if split == "test" else ""
        value = value if split == "test" else f"{split} {value}"
        lines.append(f"best: {value}, after epoch {found['epoch']} ({caveat}evaluate or export with `--weights best`)")
    if summary.get("samples_per_second") and (said := what_the_plan_said(summary)):
        lines.append(f"{rate(summary['samples_per_second'])}; {said}")
    if summary["status"] == "interrupted" and summary["checkpoint"] is not None:
        lines.append(f"continue with: petra-graph run --resume {shlex.quote(summary['directory'])}")
    lines.append(f"results: {summary['directory']}")
    return lines
