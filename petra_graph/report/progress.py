"""The progress of a run, for people: a live bar on a terminal, one plain line an epoch elsewhere, and its summary.

Progress goes to stderr.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from petra_graph.registry.listener import EpochEnded, Listener, Started
from petra_graph.report.plan.units import plural

_REFRESH_SECONDS = 0.2


def progress(stream: TextIO | None = None) -> Listener:
    """Return the listener that suits the stream, which is stderr where none is given."""
    stream = stream or sys.stderr
    return LiveProgress(stream) if stream.isatty() else PlainProgress(stream)


class PlainProgress(Listener):
    """Lines for logs: the run, and each of its epochs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._epochs = 0

    def started(self, run: Started) -> None:
        """Describe the run, and name its directory."""
        self._epochs = run.epochs
        print(heading(run), file=self._stream, flush=True)

    def epoch_ended(self, report: EpochEnded) -> None:
        """Write the epoch's line."""
        print(epoch_line(report, self._epochs), file=self._stream, flush=True)


class LiveProgress(Listener):
    """A bar for the epoch under way, and a line for each finished epoch."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(force_jupyter=False, file=stream)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=self._console,
            transient=True,
        )
        self._run: Started | None = None
        self._epoch: TaskID | None = None
        self._drawn = self._began = self._began_epoch = 0.0

    def started(self, run: Started) -> None:
        """Describe the run, name its directory, and begin."""
        self._run = run
        self._print(heading(run))
        self._began = time.monotonic()
        self._bar.start()

    def trained(self, epoch: int, micro_batches: int, means: Mapping[str, float]) -> None:
        """Advance the bar; the remaining time is the whole run's, evaluations included."""
        run, now = self._run, time.monotonic()
        assert run is not None
        if self._epoch is None:
            self._began_epoch = now
            title = f"epoch {epoch}/{run.epochs}"
            self._epoch = self._bar.add_task(title, total=run.micro_batches, numbers="")
        if now - self._drawn < _REFRESH_SECONDS and micro_batches < run.micro_batches:
            return
        self._drawn = now
        rate = micro_batches * run.batch / max(now - self._began_epoch, _REFRESH_SECONDS)
        share = (epoch - 1 + micro_batches / run.micro_batches) / run.epochs
        left = timedelta(seconds=round((now - self._began) * (1 - share) / share))
        text = f"{numbers(means)}  {rate:,.0f} samples/s  ETA {left}"
        self._bar.update(self._epoch, completed=micro_batches, numbers=text)

    def evaluating(self, epoch: int) -> None:
        """Show that the evaluation runs."""
        if self._epoch is not None:
            self._bar.update(self._epoch, description=f"evaluating after epoch {epoch}")

    def epoch_ended(self, report: EpochEnded) -> None:
        """Replace the bar by the epoch's line."""
        if self._epoch is not None:
            self._bar.remove_task(self._epoch)
            self._epoch = None
        assert self._run is not None
        self._print(epoch_line(report, self._run.epochs))

    def stopped(self) -> None:
        """Leave the terminal as it was."""
        self._bar.stop()

    def _print(self, text: str) -> None:
        """Write lines as they are; where one is too long, the terminal breaks it."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def heading(run: Started) -> str:
    """Describe a run in a line, and name its directory in another."""
    shared = f" on {run.processes} processes" if run.processes > 1 else ""
    return (
        f"{run.name}: {run.parameters:,} parameters in {plural(run.stages, 'stage')}{shared}; {run.method}, {run.schedule}, "
        f"accumulation {run.accumulation}; {run.epochs} epochs of {run.micro_batches} micro-batches of {run.batch}\n"
        f"run directory: {run.directory}{_resumed(run)}"
        + "".join(f"\n{text}" for text in run.notes)
        + "".join(f"\nwarning: {text}" for text in run.warnings)
    )


def _resumed(run: Started) -> str:
    return "" if run.resumed_at is None else f"; goes on before micro-batch {run.resumed_at:,}"


def epoch_line(report: EpochEnded, epochs: int) -> str:
    """Describe an epoch in a line."""
    width = len(str(epochs))
    test = f"   test {numbers(report.test)}" if report.test else ""
    return (
        f"epoch {report.epoch:>{width}}/{epochs}   train {numbers(report.train)}{test}"
        f"   lr {report.learning_rate:.4g}   {report.samples_per_second:,.0f} samples/s"
    )


def numbers(means: Mapping[str, float]) -> str:
    """Write the loss, and fractions as percentages."""
    parts = [f"loss {means['loss']:.4f}"] if "loss" in means else []
    parts += [f"{name} {100 * value:.2f} %" for name, value in means.items() if name == "top1"]
    return " ".join(parts)


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """Describe a run's summary in a few lines."""
    done = f"epochs: {summary['epochs']}, micro-batches: {summary['micro_batches']:,}"
    lines = [f"{summary['name']}: {summary['status']} ({done})"]
    if "stopped_early" in summary:
        lines.append(f"stopped early {summary['stopped_early']}")
    if summary["test"]:
        lines.append(f"test {numbers(summary['test'])}")
    predicted = summary.get("predicted") or {}
    planned = predicted.get("samples_per_second")
    if planned and summary["samples_per_second"]:
        source = predicted["from"]
        measures = " (`petra-graph profile` measures)" if source == "data sheet" else ""
        lines.append(
            f"{summary['samples_per_second']:,} samples/s; the plan said {planned:,}, from a {source}{measures}"
        )
    lines += [f"not planned: {reason}" for reason in predicted.get("not planned", ())]
    if summary["status"] == "interrupted" and summary["checkpoint"] is not None:
        lines.append(f"go on with: petra-graph run --resume {shlex.quote(summary['directory'])}")
    lines.append(f"results: {summary['directory']}")
    return lines
