"""Who updates running statistics: once a micro-batch, in the evaluation whose graph is differentiated.

A training forward without a graph normalises with batch statistics, as always, but must leave the running ones alone;
otherwise each micro-batch would count twice (once more in the recomputation).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Let `module` run without updating running statistics.

    It reaches every submodule with torch's own switch, `track_running_stats`: with the switch off in training mode,
    batch normalisation uses the same batch statistics and writes nothing. A block with statistics of its own gives
    the submodule that holds them this attribute, and updates them only where it is true.
    """
    switched = [part for part in module.modules() if getattr(part, "track_running_stats", False)]
    for part in switched:
        part.track_running_stats = False  # type: ignore[assignment]
    try:
        yield
    finally:
        for part in switched:
            part.track_running_stats = True  # type: ignore[assignment]
