"""The first picture of README: what a GPT keeps for its backward, by its depth, as `tools/bench/reversible_depth.py` measured it."""

from __future__ import annotations

import json
from pathlib import Path

from tools.studies.drawing import figure_of

RESULT = Path(__file__).parents[1] / "bench" / "results" / "reversible_depth-2026-11-22.json"
LINES = {
    "plain autograd": ("plain autograd", "#5b6470"),
    "checkpoint": ("checkpointing", "#c77700"),
    "reversible": ("petra_graph.reversible", "#1b6ca8"),
}
"""The rows of the result, the names of their lines, and their colours."""
MIB = 2**20


def memory_by_depth(path: Path) -> None:
    """Draw the picture, a PNG."""
    rows = [row for row in json.loads(RESULT.read_text())["rows"] if row["network"] == "GPT"]
    blocks = [row["blocks"] for row in rows]
    with figure_of(path, width=6.4, height=3.0) as axis:
        for key, (name, colour) in LINES.items():
            values = [row["bytes"][key] / MIB for row in rows]
            axis.plot(
                blocks, values, color=colour, marker="o", markersize=4, linewidth=2.4 if key == "reversible" else 1.6
            )
            axis.annotate(
                f"{name}: {values[-1]:,.0f} MiB",
                (blocks[-1], values[-1]),
                xytext=(8, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
                color=colour,
            )
        axis.set(xscale="log", yscale="log", xlabel="transformer blocks", ylabel="peak activations, MiB")
        axis.set_xticks(blocks, [str(count) for count in blocks])
        axis.minorticks_off()
