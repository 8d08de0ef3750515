"""The paper's Figures 5 and 6 of a probed run: the similarity of the three gradients, over training and over the stages.

They are made from the run's directory alone. A point is the mean of an epoch's measurements, as in the paper.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from petra_graph.errors import SpecError
from petra_graph.record.run_directory import read_run

_QUANTITIES = (
    "cosine_to_delayed",
    "cosine_to_end_to_end",
    "delayed_cosine_to_end_to_end",
    "ratio_to_delayed",
    "ratio_to_end_to_end",
    "reconstruction_error",
)

Means = Mapping[str, Mapping[int, Mapping[int, float]]]
"""By quantity, stage and epoch."""


def quantity_and_stage(name: str) -> tuple[str, int] | None:
    """Return the quantity and the stage of a probe's metric, such as probe/cosine_to_delayed/stage-03; None for any other metric."""
    matched = re.fullmatch(r"probe/(\w+)/stage-(\d+)", name)
    return None if matched is None else (matched[1], int(matched[2]))


def report_fidelity(run: Path, output: Path | None = None) -> Means:
    """Draw the measurements of a run's probe, over the epochs a line a stage, and over the stages at the last epoch, and return them.

    `run` is the directory of a run, which may still be training, `output` the picture, by default "fidelity.png" there. SpecError: the run does
    not exist, or it was not probed.
    """
    from matplotlib.figure import Figure

    recorded = read_run(run)
    means: dict[str, dict[int, dict[int, float]]] = {}
    for name, points in sorted(recorded.metrics.items()):
        if (found := quantity_and_stage(name)) is not None:
            epochs = sorted({point.epoch for point in points})
            of_epoch = {epoch: fmean(point.value for point in points if point.epoch == epoch) for epoch in epochs}
            means.setdefault(found[0], {})[found[1]] = of_epoch
    if not means:
        raise SpecError(f"{run} holds no measurement of a probe")
    figure = Figure(figsize=(18, 6.6), layout="constrained")
    axes = figure.subplots(2, len(_QUANTITIES), squeeze=False)
    for over_epochs, over_stages, quantity in zip(*axes, _QUANTITIES, strict=True):
        stages = means.get(quantity, {})
        for stage, of_epoch in stages.items():
            over_epochs.plot(list(of_epoch), list(of_epoch.values()), label=stage)
        over_stages.plot(list(stages), [list(of_epoch.values())[-1] for of_epoch in stages.values()], "o-")
        over_epochs.set(title=quantity.replace("_", " "), xlabel="epoch")
        over_stages.set(xlabel="stage, at the last epoch")
    axes[0, 0].legend(title="stage")
    figure.suptitle(f"{recorded.name}: fidelity of gradients ({recorded.resolved['method']['name']})")
    figure.savefig(output or run / "fidelity.png", dpi=150)
    return means
