"""The paper's Figures 5 and 6 of a run: the similarity of the three gradients, over training and over the stages.

They are made from the run's directory alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from petra_graph.record.run_directory import write_whole
from petra_graph_report.fidelity_history import FidelityHistory, fidelity_history, smooth

_DELAYED, _END_TO_END, _BOTH = "#1b6ca8", "#c8553d", "#7d7d7d"
_COLOURS = "plasma"
_LIGHTEST = 0.62
"""Share of the colours that is used: later ones have less than three times the luminance contrast to white."""
_GROUND = "white"
"""Never transparent: a dark page would hide the axes."""
_WIDE = 4.0
"""Ratios beyond this, or its inverse, are drawn on a logarithmic axis."""
_DPI = 150


def report_fidelity(run: Path, output: Path | None = None) -> Mapping[str, Any]:
    """Draw the measurements of a run's probe: NAME-training.png and NAME-stages.png.

    Args:
        run: a run's directory; the run may still be training.
        output: path of both figures without "-training.png"; None: "fidelity" in the run's directory.

    Returns:
        the figures' paths, and the numbers that they show: by quantity and stage, one mean for each epoch.

    Raises:
        SpecError: the run does not exist, or it was not probed.
        RunFailed: the disk refuses.
    """
    history = fidelity_history(run)
    base = output or run / "fidelity"
    base.parent.mkdir(parents=True, exist_ok=True)
    paths = {name: base.with_name(f"{base.name}-{name}.png") for name in ("training", "stages")}
    draw_over_training(history, paths["training"])
    draw_over_stages(history, paths["stages"])
    means = {
        quantity: {
            str(stage): [history.at_epoch(quantity, epoch).get(stage) for epoch in range(1, history.epochs + 1)]
            for stage in by_stage
        }
        for quantity, by_stage in history.points.items()
    }
    return {
        "run": str(run),
        "method": history.method,
        "settings": history.settings,
        "figures": {name: str(path) for name, path in paths.items()},
        "epochs": history.epochs,
        "stages": list(history.stages),
        "learning rate": {str(epoch): rate for epoch, rate in history.learning_rates.items()},
        "means by epoch": means,
    }


def draw_over_training(history: FidelityHistory, path: Path) -> None:
    """Draw Figure 5, with the reconstruction's error next to it, as PNG."""
    figure = _figure(figsize=(12.5, 6.6))
    axes = figure.subplots(2, 3, sharex=True, gridspec_kw={"wspace": 0.05, "hspace": 0.05})
    colours = _by_stage(history.stages)
    own = history.method
    panels = (
        (axes[0][0], f"cosine: {own} and delayed", ("cosine_to_delayed",)),
        (axes[0][1], f"cosine to end-to-end: {own} (full), delayed (dashed)", _pair("cosine")),
        (axes[1][0], f"norm ratio: {own} / delayed", ("ratio_to_delayed",)),
        (axes[1][1], f"norm ratio to end-to-end: {own} (full), delayed (dashed)", _pair("ratio")),
        (axes[1][2], "relative error of reconstructed inputs", ("reconstruction_error",)),
    )
    for axis, title, quantities in panels:
        for quantity, dash in zip(quantities, ("-", "--"), strict=False):
            for stage, points in history.points.get(quantity, {}).items():
                times = [point.at for point in points]
                faint = {"linewidth": 1.0, "alpha": 0.75} if dash == "--" else {"linewidth": 1.5}
                axis.plot(times, smooth(points, history.window), dash, color=colours[stage], **faint)
        _finish(axis, title)
        for epoch in history.drops:
            axis.axvline(epoch - 0.5 if history.averaged else epoch - 1, color="#999999", linewidth=0.8, linestyle=":")
    for axis, quantities in ((axes[1][0], ("ratio_to_delayed",)), (axes[1][1], _pair("ratio"))):
        axis.axhline(1.0, color="#999999", linewidth=0.8)
        if not all(1 / _WIDE < value < _WIDE for value in _values(history, quantities)):
            _logarithmic(axis)
    if any(value > 0 for value in _values(history, ("reconstruction_error",))):
        axes[1][2].set_yscale("log")
    for axis in axes[1]:
        axis.set_xlabel("epoch")
    _legend(axes[0][2], history, colours)
    figure.suptitle(f"{history.name}: fidelity of gradients over training ({own}, {history.settings})", fontsize=11)
    _save(figure, path)


def draw_over_stages(history: FidelityHistory, path: Path) -> None:
    """Draw Figure 6, cosines by stage at some epochs, as PNG."""
    epochs = history.chosen_epochs()
    figure = _figure(figsize=(3.3 * max(len(epochs), 2), 3.6))
    axes = figure.subplots(1, len(epochs), sharey=True, squeeze=False)[0]
    lines = (
        ("cosine_to_delayed", f"{history.method} and delayed", _DELAYED, "o-"),
        ("cosine_to_end_to_end", f"{history.method} and end-to-end", _END_TO_END, "s-"),
        ("delayed_cosine_to_end_to_end", "delayed and end-to-end", _BOTH, "^--"),
    )
    for axis, epoch in zip(axes, epochs, strict=True):
        for quantity, label, colour, style in lines:
            found = history.at_epoch(quantity, epoch)
            axis.plot(found.keys(), found.values(), style, color=colour, label=label, markersize=4, linewidth=1.4)
        rate = history.learning_rates.get(epoch)
        _finish(axis, f"epoch {epoch}" + (f", learning rate {rate:.3g}" if rate is not None else ""))
        axis.set_xlabel("stage (grey: reconstructs nothing)")
        for stage in set(history.stages) - history.reconstructing:
            axis.axvspan(stage - 0.5, stage + 0.5, color="#000000", alpha=0.05, linewidth=0)
        axis.set_xlim(history.stages[0] - 0.5, history.stages[-1] + 0.5)
    axes[0].set_ylabel("cosine")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.suptitle(f"{history.name}: fidelity of gradients by stage ({history.settings})", fontsize=11)
    _save(figure, path)


def _pair(kind: str) -> tuple[str, str]:
    return f"{kind}_to_end_to_end", f"delayed_{kind}_to_end_to_end"


def _figure(**options: Any) -> Any:
    from matplotlib.figure import Figure

    return Figure(layout="constrained", facecolor=_GROUND, **options)


def _by_stage(stages: Sequence[int]) -> Mapping[int, Any]:
    """Give the stages colours in order, dark to light."""
    from matplotlib import colormaps

    last = max(1, len(stages) - 1)
    return {stage: colormaps[_COLOURS](_LIGHTEST * place / last) for place, stage in enumerate(stages)}


def _finish(axis: Any, title: str) -> None:
    axis.set_title(title, fontsize=9.5)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8.5)
    axis.xaxis.get_major_locator().set_params(integer=True)


def _values(history: FidelityHistory, quantities: Sequence[str]) -> list[float]:
    of_stages = [points for quantity in quantities for points in history.points.get(quantity, {}).values()]
    return [point.value for points in of_stages for point in points]


def _logarithmic(axis: Any) -> None:
    """Ticks at 1, 2 and 5, written as plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _legend(axis: Any, history: FidelityHistory, colours: Mapping[int, Any]) -> None:
    """Use an empty panel for the stages' colours."""
    from matplotlib.lines import Line2D

    axis.axis("off")
    entries = [
        Line2D([], [], color=colour, linewidth=3, label=f"{stage}" + " *" * (stage not in history.reconstructing))
        for stage, colour in colours.items()
    ]
    axis.legend(
        handles=entries,
        title="stage (* reconstructs nothing)",
        loc="upper center",
        ncols=-(-len(entries) // 12) if len(entries) > 12 else 2,  # noqa: PLR2004  columns as long as the panel
        frameon=False,
        fontsize=9,
        title_fontsize=9,
    )
    points = "means over an epoch" + f", smoothed over {history.window}" * (history.window > 1)
    dropped = "\ndotted: the learning rate drops" if history.drops else ""
    axis.text(
        0.5,
        0.02,
        f"points: {points if history.averaged else 'single measurements'}{dropped}",
        ha="center",
        fontsize=8.5,
        transform=axis.transAxes,
    )


def _save(figure: Any, path: Path) -> None:
    write_whole(
        path, lambda temporary: figure.savefig(temporary, format="png", dpi=_DPI, facecolor=_GROUND, transparent=False)
    )
