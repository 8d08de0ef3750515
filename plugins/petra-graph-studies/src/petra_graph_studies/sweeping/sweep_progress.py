"""The progress of a sweep on stderr: a table on a terminal, a line for each run that has ended elsewhere."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, ConsoleDimensions
from rich.live import Live
from rich.table import Table
from rich.text import Text

from petra_graph.errors import Interrupted, printable
from petra_graph.record.metrics import METRICS, event_of
from petra_graph.record.run_files import read_json
from petra_graph.report.metric_text import final_metrics, value_text
from petra_graph.report.tables import name_column, table
from petra_graph.units import NOTHING
from petra_graph_studies.sweeping.sweep_folder import Member, Sweep
from petra_graph_studies.sweeping.sweep_table import count_statuses

_REFRESH_SECONDS = 1.0
_LINES_AROUND = 5
"""The lines of a terminal that are not rows: heads, the counts, and the prompt."""
_LOSSES = ("train/micro_batch_loss", "train/loss")
_WIDE, _NARROW = 44, 12
"""Characters of a run's name: the most, and the fewest on a narrow terminal."""


class SweepProgress:
    """Lines: how each run has ended."""

    def __init__(self, sweep: Sweep, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._members = sweep.members
        self._done = sum(member.status() == "done" for member in sweep.members)

    def begin(self) -> None:
        """Say where the sweep stands."""

    def look(self, running: Collection[Path]) -> None:
        """Show what runs now."""

    def ended(self, member: Member, code: int) -> None:
        """Write the line of a run that has ended with an exit code."""
        self._done += member.status() == "done"
        self._print(f"{self._done}/{len(self._members)} done   {ended_line(member, code)}")

    def stop(self) -> None:
        """Leave the terminal as it was."""

    def _print(self, text: str) -> None:
        print(printable(text), file=self._stream, flush=True)


class LiveSweepProgress(SweepProgress):
    """A table of all runs, which is drawn anew each second."""

    def __init__(self, sweep: Sweep, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(sweep, stream)
        self._clock = clock
        self._drawn = 0.0
        self._console = Console(force_jupyter=False, file=self._stream)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def begin(self) -> None:
        self._live.start()

    def look(self, running: Collection[Path]) -> None:
        if self._clock() - self._drawn >= _REFRESH_SECONDS:
            self._drawn = self._clock()
            self._live.update(progress_table(self._members, running, self._console.size), refresh=True)

    def stop(self) -> None:
        self._live.stop()

    def _print(self, text: str) -> None:
        self._console.print(printable(text), highlight=False, markup=False, soft_wrap=True)


def sweep_progress(sweep: Sweep, stream: TextIO | None = None) -> SweepProgress:
    """Return what suits the stream, which is stderr where no stream is given."""
    stream = stream or sys.stderr
    return LiveSweepProgress(sweep, stream) if stream.isatty() else SweepProgress(sweep, stream)


def ended_line(member: Member, code: int) -> str:
    """Describe a run that has ended with an exit code in a line."""
    status, run = member.status(), member.recorded()
    if status == "waiting" and code in (Interrupted.exit_code, -signal.SIGTERM):
        return f"{member.words}: interrupted before it began to train"
    if status == "interrupted":
        return f"{member.words}: interrupted"
    if status != "done" or run is None:
        return f"{member.words}: {status if status != 'waiting' else 'failed'}: {member.failure().splitlines()[-1]}"
    value = (
        ""
        if run.best is None
        else f"   best {run.best.metric} {value_text(run.best.metric, run.best.value, run.scales)}"
    )
    return f"{member.words}: done{value}"


def progress_table(members: Sequence[Member], running: Collection[Path], terminal: ConsoleDimensions) -> Table:
    """Return the runs as a table that a terminal can hold: the running ones first, then those that were last done."""
    statuses = ["running" if member.folder in running else member.status() for member in members]
    order = sorted(range(len(members)), key=lambda place: (statuses[place] != "running", statuses[place] == "waiting"))
    shown = order[: max(1, terminal.height - _LINES_AROUND)]
    rows = [_row(members[place], statuses[place]) for place in sorted(shown)]
    names, *others = zip(*rows, strict=True)
    columns = [
        name_column(head, cells, _WIDE) for head, cells in zip(("status", "epoch", "loss", "test"), others, strict=True)
    ]
    left = terminal.width - sum(column.width for column in columns)
    made = table([name_column("run", names, max(_NARROW, min(_WIDE, left))), *columns])
    more = "" if len(shown) == len(members) else f"; … {len(members) - len(shown)} more"
    made.caption, made.caption_justify = Text(count_statuses(statuses) + more), "left"
    return made


def _row(member: Member, status: str) -> tuple[str, ...]:
    directory = member.directory
    if directory is None or status not in ("running", "done"):
        return member.words, "starting" if status == "running" else status, NOTHING, NOTHING, NOTHING
    if status == "done":
        summary = read_json(directory / "summary.json", dict) or {}
        means = {f"test/{name}": value for name, value in (summary.get("test") or {}).items()}
        tested = next((f"{name} {value_text(name, means[name])}" for name in final_metrics(means)), NOTHING)
        loss = (summary.get("train") or {}).get("loss")
        return member.words, status, str(summary.get("epochs", NOTHING)), _loss(loss), tested.removeprefix("test/")
    latest = latest_values(directory)
    event = next((latest[name] for name in _LOSSES if name in latest), None)
    epoch = NOTHING if event is None else str(event["epoch"])
    return member.words, status, epoch, _loss(None if event is None else event["value"]), NOTHING


def _loss(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.4g}"


def latest_values(directory: Path, most_bytes: int = 2**14) -> Mapping[str, Mapping[str, Any]]:
    """Return the latest event of each name among the last bytes of a run's events; {} where it has none yet."""
    try:
        with (directory / METRICS).open("rb") as lines:
            lines.seek(-min(most_bytes, lines.seek(0, os.SEEK_END)), os.SEEK_END)
            found = [event for line in lines.read().splitlines() if (event := event_of(line)) is not None]
    except OSError:
        return {}
    return {event["name"]: event for event in found if event["value"] is not None}
