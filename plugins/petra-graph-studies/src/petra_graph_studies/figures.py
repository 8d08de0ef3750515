"""The paper's Figures 5 and 6 of a run: the similarity of the three gradients, over training and over the stages.

They are made from the run's directory alone. A point is the mean of an epoch's measurements, as in the paper.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from petra_graph.errors import SpecError
from petra_graph.record.recorded_run import RecordedRun, read_run

_EPOCHS_A_WINDOW = 30
"""The paper smooths 300 epochs over 10."""
_DROP = 0.5
"""A learning rate below this share of the previous epoch's has dropped."""
_PANELS = (
    ("cosine to delayed", ("cosine_to_delayed",)),
    ("cosine to end-to-end (dashed: of delayed)", ("cosine_to_end_to_end", "delayed_cosine_to_end_to_end")),
    ("norm ratio to delayed", ("ratio_to_delayed",)),
    ("norm ratio to end-to-end (dashed: of delayed)", ("ratio_to_end_to_end", "delayed_ratio_to_end_to_end")),
    ("relative error of reconstructed inputs", ("reconstruction_error",)),
)
_LINES = (
    ("cosine_to_delayed", "run and delayed", "#1b6ca8", "o-"),
    ("cosine_to_end_to_end", "run and end-to-end", "#c8553d", "s-"),
    ("delayed_cosine_to_end_to_end", "delayed and end-to-end", "#7d7d7d", "^--"),
)

Points = Mapping[str, Mapping[int, Mapping[int, float]]]
"""The means by quantity, stage and epoch."""


def report_fidelity(run: Path, output: Path | None = None) -> Mapping[str, Any]:
    """Draw the measurements of a run's probe: NAME-training.png and NAME-stages.png.

    Args:
        run: a run's directory; the run may still be training.
        output: path of both figures without "-training.png"; None: "fidelity" in the run's directory.

    Returns:
        the figures' paths, and the numbers that they show: by quantity and stage, one mean for each epoch.

    Raises:
        SpecError: the run does not exist, or it was not probed.
    """
    recorded = read_run(run)
    points = _points(recorded)
    if not points:
        raise SpecError(f"{run} holds no measurement of a probe")
    epochs = max(epoch for stages in points.values() for found in stages.values() for epoch in found)
    rates = {point.epoch: point.value for point in recorded.metrics.get("learning_rate", ())}
    base = output or run / "fidelity"
    paths = {name: base.with_name(f"{base.name}-{name}.png") for name in ("training", "stages")}
    base.parent.mkdir(parents=True, exist_ok=True)
    _draw_training(recorded, points, epochs, paths["training"])
    _draw_stages(recorded, points, _chosen_epochs(rates, epochs), paths["stages"])
    return {
        "run": str(run),
        "method": recorded.resolved["method"]["name"],
        "figures": {name: str(path) for name, path in paths.items()},
        "epochs": epochs,
        "stages": sorted({stage for stages in points.values() for stage in stages}),
        "learning rate": {str(epoch): rate for epoch, rate in rates.items()},
        "means by epoch": {
            quantity: {
                str(stage): [found.get(epoch) for epoch in range(1, epochs + 1)] for stage, found in stages.items()
            }
            for quantity, stages in points.items()
        },
    }


def quantity_and_stage(name: str) -> tuple[str, int] | None:
    """Return the quantity and the stage of a probe's metric, such as probe/cosine_to_delayed/stage-03; None for any other metric."""
    matched = re.fullmatch(r"probe/(\w+)/stage-(\d+)", name)
    return None if matched is None else (matched[1], int(matched[2]))


def _points(run: RecordedRun) -> Points:
    made: dict[str, dict[int, dict[int, float]]] = {}
    for name, points in sorted(run.metrics.items()):
        if (found := quantity_and_stage(name)) is not None:
            grouped = groupby(sorted(points, key=lambda point: point.epoch), key=lambda point: point.epoch)
            means = {epoch: fmean(point.value for point in each) for epoch, each in grouped}
            made.setdefault(found[0], {})[found[1]] = means
    return made


def _chosen_epochs(rates: Mapping[int, float], epochs: int) -> list[int]:
    """Return up to four epochs to look at: early, and before and after drops of the learning rate."""
    drops = [epoch for (_, before), (epoch, rate) in pairwise(sorted(rates.items())) if rate < _DROP * before]
    ends = sorted({*(epoch - 1 for epoch in drops), epochs})
    if len(ends) > 1:
        return sorted({max(1, ends[0] // 4), *ends[:2], ends[-1]})
    return sorted({max(1, epochs * quarter // 4) for quarter in (1, 2, 3, 4)})


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Return the rolling mean of values over `window` points around each; over fewer at the ends."""
    before, after = (window - 1) // 2, window // 2
    return [fmean(values[max(0, at - before) : at + after + 1]) for at in range(len(values))]


def _draw_training(run: RecordedRun, points: Points, epochs: int, path: Path) -> None:
    """Draw Figure 5, with the reconstruction's error next to it; a line a stage, dark to light."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    window = max(1, epochs // _EPOCHS_A_WINDOW)
    stages = sorted({stage for found in points.values() for stage in found})
    figure = Figure(figsize=(12.5, 6.6), layout="constrained")
    for axis, (title, quantities) in zip(figure.subplots(2, 3, sharex=True).flat, _PANELS, strict=False):
        for quantity, dash in zip(quantities, ("-", "--"), strict=False):
            for stage, found in points.get(quantity, {}).items():
                colour = colormaps["plasma"](0.85 * stages.index(stage) / max(1, len(stages) - 1))
                values = smooth(list(found.values()), window)
                axis.plot(list(found), values, dash, color=colour, linewidth=1.3, label=stage)
                if quantity == "reconstruction_error" and any(values):
                    axis.set_yscale("log")
        axis.set_title(f"{title}", fontsize=9.5)
        axis.grid(alpha=0.25)
        axis.set_xlabel("epoch")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.axes[5].axis("off")
    figure.axes[5].legend(handles, labels, title="stage", ncols=-(-len(stages) // 12), frameon=False)
    figure.suptitle(f"{run.name}: fidelity of gradients over training ({run.resolved['method']['name']})")
    figure.savefig(path, dpi=150)


def _draw_stages(run: RecordedRun, points: Points, epochs: Sequence[int], path: Path) -> None:
    """Draw Figure 6, cosines by stage at some epochs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.3 * max(len(epochs), 2), 3.6), layout="constrained")
    axes = figure.subplots(1, len(epochs), sharey=True, squeeze=False)[0]
    for axis, epoch in zip(axes, epochs, strict=True):
        for quantity, label, colour, style in _LINES:
            found = {stage: means.get(epoch) for stage, means in points.get(quantity, {}).items()}
            axis.plot(found.keys(), found.values(), style, color=colour, label=label, markersize=4)
        axis.set_title(f"epoch {epoch}", fontsize=9.5)
        axis.grid(alpha=0.25)
        axis.set_xlabel("stage")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(f"{run.name}: cosines of gradients by stage ({run.resolved['method']['name']})")
    figure.savefig(path, dpi=150)
