"""A run as people read it: its metrics, its progress and its summary; `scales` say which of its own metrics are shares."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TextIO

from petra_graph.errors import printable
from petra_graph.plugins.callback import EpochEnded, Listener, Started
from petra_graph.plugins.loss_and_metric import Scale, scale_of, scales_in
from petra_graph.units import duration, noun, percent, plural, rate

_PAUSE_SECONDS = 60.0  # between the lines within an epoch: a few hundred lines a night


def value_text(metric: str, value: float, scales: Mapping[str, Scale]) -> str:
    """Write a metric's value: shares, as top1 and those whose scale says so, as percentages."""
    if scale_of(metric, scales).share:
        return percent(value, 2)
    # Between these, four decimals of a mean say enough.
    return f"{value:.4f}" if 0.001 <= abs(value) < 10_000 or not value else f"{value:.5g}"  # noqa: PLR2004


def numbers(means: Mapping[str, float], scales: Mapping[str, Scale]) -> str:
    """Write all metrics, the loss first."""
    first = sorted(means.items(), key=lambda item: item[0] != "loss")
    return " ".join(f"{name} {value_text(name, value, scales)}" for name, value in first)


def chosen_on(metric: str) -> str:
    """Say which samples have chosen a best value: the best of several on the test set is not what new samples will give."""
    part = metric.partition("/")[0]
    if part == "test":
        return "chosen on the test set, so new samples will do worse: set data.validation"
    return f"chosen on the {'training' if part == 'train' else part} samples"


class Progress(Listener):
    """Lines to a stream (None: stderr): the run, each of its epochs, its warnings; and within a long epoch, now and then, how far it is."""

    _run: Started

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream or sys.stderr, clock
        self._written = 0.0
        self._mark = 0.0, 0  # when this epoch began, and the micro-batches of the run that were done then

    def started(self, run: Started) -> None:
        self._run, self._mark = run, (self._clock(), run.resumed_at or 0)
        self._print(heading(run))

    def trained(self, epoch: int, micro_batches: int, means: Mapping[str, float]) -> None:
        run, (began, before), now = self._run, self._mark, self._clock()
        if now - self._written < _PAUSE_SECONDS or micro_batches >= run.micro_batches:
            return
        done = (epoch - 1) * run.micro_batches + micro_batches
        speed = max(done - before, 1) / (now - began)
        left = duration(round((run.epochs * run.micro_batches - done) / speed))
        state = f"{micro_batches:,} of {run.micro_batches:,} micro-batches   {rate(speed * run.batch)}  ETA {left}"
        self._print(f"{self._title(epoch)}   {state}   train {numbers(means, run.metrics)}")

    def warned(self, text: str) -> None:
        self._print(f"warning: {text}")

    def epoch_ended(self, report: EpochEnded) -> None:
        run, found = self._run, report.evaluated
        evaluated = f"   {run.evaluates} {numbers(found, run.metrics)}" if found else ""
        speed = f"lr {report.learning_rate:.4g}   {rate(report.samples_per_second)}"
        self._print(f"{self._title(report.epoch)}   train {numbers(report.train, run.metrics)}{evaluated}   {speed}")
        self._mark = self._clock(), report.epoch * run.micro_batches

    def testing(self, weights: str) -> None:
        self._print(f"test of the {weights}")

    def _title(self, epoch: int) -> str:
        return f"epoch {epoch:>{len(str(self._run.epochs))}}/{self._run.epochs}"

    def _print(self, text: str) -> None:
        self._written = self._clock()
        with suppress(OSError):  # a training does not end where nobody reads its progress any more
            print(printable(text), file=self._stream, flush=True)


def heading(run: Started) -> str:
    """Describe a run in a line, and name its directory in another."""
    shared = f" on {run.processes} processes" if run.processes > 1 else ""
    length = f"{plural(run.epochs, 'epoch')} of {run.micro_batches} {noun(run.micro_batches, 'micro-batch', 'es')}"
    what = (
        f"{run.name}: {run.parameters:,} parameters in {plural(run.stages, 'stage')}{shared}; {run.method}, {run.schedule}, "
        f"accumulation {run.accumulation}; {length} of {run.batch}"
    )
    after = "" if run.resumed_at is None else f"; continues before micro-batch {run.resumed_at:,}"
    where = f"run directory: {run.directory}{after}"
    return "\n".join([what, where, *run.notes, *(f"warning: {text}" for text in run.warnings)])


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """Describe a run's summary in a few lines."""
    done = f"epochs: {summary['epochs']}, micro-batches: {summary['micro_batches']:,}"
    lines = [f"{summary['name']}: {summary['status']} ({done})"]
    scales, tested = scales_in(summary.get("metrics")), summary.get("test_weights")
    if reason := summary.get("stopped_early"):
        lines.append(f"stopped early {reason}")
    if summary.get("validation"):
        lines.append(f"validation {numbers(summary['validation'], scales)}")
    if summary["test"]:
        of = f", with the {tested['weights']} weights, of epoch {tested['epoch']}" if tested else ""
        lines.append(f"test {numbers(summary['test'], scales)}{of}")
    if found := summary.get("best"):
        best = f"{found['metric']} {value_text(found['metric'], found['value'], scales)}, after epoch {found['epoch']}"
        lines.append(f"best: {best} ({chosen_on(found['metric'])}; evaluate or export with `--weights best`)")
    if summary["status"] == "interrupted" and summary["checkpoint"] is not None:
        lines.append(f"continue with: petra-graph run --resume {shlex.quote(summary['directory'])}")
    return [*lines, f"results: {summary['directory']}"]
