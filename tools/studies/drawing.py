"""The look that all studies' figures share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#7a5195")
DASHES = ("-", "--", "-.", ":")


@contextmanager
def figure_of(path: Path, *, title: str = "", width: float = 6.0, height: float = 3.8) -> Iterator[Any]:
    """Give the axes of a figure, which is written to `path` afterwards."""
    with panels(path, 1, title=title, width=width, height=height) as (axis,):
        yield axis


@contextmanager
def panels(path: Path, count: int, *, title: str, width: float, height: float) -> Iterator[Any]:
    """Give the axes of a figure with `count` panels beside one another, which is written to `path` afterwards."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, count, figsize=(width, height), layout="constrained", squeeze=False)
    for axis in axes[0]:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    yield axes[0]
    if title:
        figure.suptitle(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Opaque, whatever the reader's settings: a dark page would hide the axes.
    figure.savefig(path, dpi=130, facecolor="white", transparent=False)
    plt.close(figure)
