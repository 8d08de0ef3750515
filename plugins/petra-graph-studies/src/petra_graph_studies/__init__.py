"""Sweeps, the probe of gradients, corrections of late gradients, and trackers of experiments, for petra-graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from petra_graph_studies.sweeping import Sweep, sweep

__all__ = ["Sweep", "sweep"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from petra_graph_studies import sweeping

    return getattr(sweeping, name)
