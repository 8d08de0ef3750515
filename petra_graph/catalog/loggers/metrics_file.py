"""`metrics.jsonl` as a logger: a run writes the file itself, before any logger is called, so nothing is left to be done."""

from __future__ import annotations

from collections.abc import Mapping

from petra_graph.plugins import NoOptions, RunInfo


class MetricsFile:
    """Names the file in a list of loggers."""

    def __init__(self, _: NoOptions, run: RunInfo) -> None:
        self.path = run.directory / "metrics.jsonl"

    def record(self, *, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Leave the values where they are."""

    def close(self) -> None:
        """Leave the file open: resuming and reports rest on it."""
