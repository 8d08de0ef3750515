"""The summary of a run, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from petra_graph.report.progress import numbers


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """Describe a run's summary in a few lines."""
    done = f"epochs: {summary['epochs']}, micro-batches: {summary['micro_batches']:,}"
    lines = [f"{summary['name']}: {summary['status']} ({done})"]
    if summary["test"]:
        lines.append(f"test {numbers(summary['test'])}")
    predicted = (summary.get("predicted") or {}).get("samples_per_second")
    if predicted and summary["samples_per_second"]:
        source = summary["predicted"]["from"]
        lines.append(f"{summary['samples_per_second']:,} samples/s; the plan said {predicted:,}, from a {source}")
    lines += [f"not planned: {reason}" for reason in (summary.get("predicted") or {}).get("not planned", ())]
    lines.append(f"results: {summary['directory']}")
    return lines
