"""A window of torch.profiler over micro-batches of the head.

The window begins when the head has done the micro-batch before the first one, and ends when it has done the last one. Between the
two, this process's stages are at work on these micro-batches and on others that are in flight with them. A run that is resumed
after the window's beginning records no window.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from petra_graph.errors import cannot_write
from petra_graph.plugins import Callback, Started
from petra_graph_studies.watching.declared import ProfilerOptions


class Profiler(Callback):
    """Writes `trace.json`."""

    def __init__(self, options: ProfilerOptions) -> None:
        self._options = options
        self._per_epoch = 0
        self._path = Path()
        self._profile: torch.profiler.profile | None = None

    def started(self, run: Started) -> None:
        """Begin the window at once where it begins with the run."""
        self._per_epoch = run.micro_batches
        self._path = run.directory / "trace.json"
        if run.resumed_at is None:
            self._passed(0)

    def trained(self, epoch: int, micro_batches: int, means: Mapping[str, float]) -> None:
        self._passed((epoch - 1) * self._per_epoch + micro_batches)

    def stopped(self) -> None:
        """Write the part of a window that was recorded, where the run ended within it."""
        if self._profile is not None:
            self._end(self._profile)

    def _passed(self, micro_batches: int) -> None:
        if micro_batches == self._options.first - 1:
            activities = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
            self._profile = torch.profiler.profile(activities=activities)
            self._profile.start()
        elif micro_batches == self._options.last and self._profile is not None:
            self._end(self._profile)

    def _end(self, profile: torch.profiler.profile) -> None:
        self._profile = None
        profile.stop()
        try:
            profile.export_chrome_trace(str(self._path))
        except OSError as error:
            raise cannot_write(self._path, error) from error
