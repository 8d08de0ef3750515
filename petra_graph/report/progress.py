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
from petra_graph.report.metric_text import chosen_on, evaluation_text, numbers
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

    _pace: _Pace

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._written = 0.0

    def started(self, run: Started) -> None:
        """Describe the run, and name its directory."""
        self._pace = _Pace(run, self._clock())
        self._print(heading(run))

    def trained(self, epoch: int, micro_batches: int, means: Mapping[str, float]) -> None:
        """Write a line where the latest one is old; the remaining time is the whole run's, evaluations included."""
        now, run = self._clock(), self._pace.run
        if now - self._written >= _LINE_SECONDS and micro_batches < run.micro_batches:
            done = f"{micro_batches:,} of {run.micro_batches:,} micro-batches"
            pace = self._pace.text(now, epoch, micro_batches)
            self._print(f"{_title(epoch, run.epochs)}   {done}   train {numbers(means)}   {pace}")

    def warned(self, text: str) -> None:
        """Write a warning; above the bar, where there is one."""
        self._print(f"warning: {text}")

    def evaluating(self, epoch: int) -> None:
        """Say that the evaluation begins, where the latest line is old."""
        if self._clock() - self._written >= _LINE_SECONDS:
            self._print(f"{_title(epoch, self._pace.run.epochs)}   evaluating")

    def epoch_ended(self, report: EpochEnded) -> None:
        """Write the epoch's line."""
        self._print(epoch_line(report, self._pace.run))
        self._pace.epoch_began(self._clock())

    def testing(self, weights: str) -> None:
        """Say which weights are tested."""
        self._print(f"test of the {weights}")

    def _print(self, text: str) -> None:
        self._written = self._clock()
        print(printable(text), file=self._stream, flush=True)


class LiveProgress(PlainProgress):
    """A bar for the epoch under way, and a line for each finished epoch."""

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
        """Describe the run, name its directory, and begin."""
        super().started(run)
        self._bar.start()

    def trained(self, epoch: int, micro_batches: int, means: Mapping[str, float]) -> None:
        """Advance the bar; the remaining time is the whole run's, evaluations included."""
        run, now = self._pace.run, self._clock()
        if self._epoch is None:
            title = f"epoch {epoch}/{run.epochs}"
            self._epoch = self._bar.add_task(title, total=run.micro_batches, numbers="")
        elif now - self._written < _REFRESH_SECONDS and micro_batches < run.micro_batches:
            return
        self._written = now
        counted = f"epoch {epoch}/{run.epochs} {micro_batches}/{run.micro_batches} "
        left = self._console.width - len(counted) - self._bar_width - 2
        text = printable(f"{self._pace.text(now, epoch, micro_batches)}  {numbers(means)}")
        self._bar.update(self._epoch, completed=micro_batches, numbers=bounded(text, max(1, left)))

    def evaluating(self, epoch: int) -> None:
        if self._epoch is not None:
            self._bar.update(self._epoch, description=f"evaluating after epoch {epoch}")

    def epoch_ended(self, report: EpochEnded) -> None:
        """Replace the bar by the epoch's line."""
        if self._epoch is not None:
            self._bar.remove_task(self._epoch)
            self._epoch = None
        super().epoch_ended(report)

    def stopped(self) -> None:
        """Leave the terminal as it was."""
        self._bar.stop()

    def _print(self, text: str) -> None:
        self._console.print(printable(text), highlight=False, markup=False, soft_wrap=True)


class _Pace:
    """How fast a run is, and how long it still takes; what was done before it was resumed does not count."""

    def __init__(self, run: Started, now: float) -> None:
        self.run = run
        self._began = self._epoch_began = now
        self._before = run.resumed_at or 0
        self._before_in_epoch = self._before % run.micro_batches

    def epoch_began(self, now: float) -> None:
        self._epoch_began, self._before_in_epoch = now, 0

    def text(self, now: float, epoch: int, micro_batches: int) -> str:
        """Return the speed in this epoch, and the time that the run still takes."""
        run = self.run
        done, total = (epoch - 1) * run.micro_batches + micro_batches, run.epochs * run.micro_batches
        speed = (micro_batches - self._before_in_epoch) * run.batch / max(now - self._epoch_began, _REFRESH_SECONDS)
        left = clock((now - self._began) * (total - done) / max(done - self._before, 1))
        return f"{rate(speed)}  ETA {left}"


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
    """Describe an epoch in a line."""
    found = report.evaluated
    evaluated = f"   {run.evaluates} {evaluation_text(found, run.tested, run.metrics)}" if found else ""
    return (
        f"{_title(report.epoch, run.epochs)}   train {numbers(report.train)}{evaluated}"
        f"   lr {report.learning_rate:.4g}   {rate(report.samples_per_second)}"
    )


def _title(epoch: int, epochs: int) -> str:
    return f"epoch {epoch:>{len(str(epochs))}}/{epochs}"


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """Describe a run's summary in a few lines."""
    done = f"epochs: {summary['epochs']}, micro-batches: {summary['micro_batches']:,}"
    lines = [f"{summary['name']}: {summary['status']} ({done})"]
    scales = scales_in(summary.get("metrics"))
    if "stopped_early" in summary:
        reason = summary["stopped_early"]
        caveat = f" ({chosen_on('test/')})" if ": test/" in reason else ""
        lines.append(f"stopped early {reason}{caveat}")
    if summary.get("validation"):
        of = ", with the last weights" if summary.get("test_weights", {}).get("weights") == "best" else ""
        lines.append(f"validation {evaluation_text(summary['validation'], summary.get('validated', ''), scales)}{of}")
    if summary["test"]:
        which = summary.get("test_weights")
        of = f", with the {which['weights']} weights, of epoch {which['epoch']}" if which else ""
        lines.append(f"test {evaluation_text(summary['test'], summary.get('tested', ''), scales)}{of}")
    if found := summary.get("best"):
        split, _, name = found["metric"].partition("/")
        value = f"{'' if split == 'test' else f'{split} '}{evaluation_text({name: found['value']}, '', scales)}"
        caveat = f"{chosen_on(found['metric'])}; " if split == "test" else ""
        lines.append(f"best: {value}, after epoch {found['epoch']} ({caveat}evaluate or export with `--weights best`)")
    if summary.get("samples_per_second") and (said := what_the_plan_said(summary)):
        lines.append(f"{rate(summary['samples_per_second'])}; {said}")
    if summary["status"] == "interrupted" and summary["checkpoint"] is not None:
        lines.append(f"continue with: petra-graph run --resume {shlex.quote(summary['directory'])}")
    lines.append(f"results: {summary['directory']}")
    return lines
