"""Figures of a run, made from its directory alone."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from petra_graph.errors import SpecError
from petra_graph.program.schedule import schedule_text
from petra_graph.record.metrics import read_events
from petra_graph.report.fidelity_figures import ProbedRun, draw_over_stages, draw_over_training
from petra_graph.report.fidelity_history import fidelity_history, history_numbers


def report_fidelity(run: Path, output: Path | None = None) -> Mapping[str, Any]:
    """Draw the measurements of a run's probe: NAME-training.png and NAME-stages.png.

    Args:
        run: a run's directory; the run may still go on.
        output: path of both figures without "-training.png"; None: "fidelity" in the run's directory.

    Returns:
        the figures' paths, and the numbers that they show.

    Raises:
        SpecError: there is no such run, it was not probed, or matplotlib is not installed.
        RunFailed: the disk refuses.
    """
    probed = _probed_run(_resolved(run))
    found = fidelity_history(read_events(run))
    if found is None:
        message = f"{run} holds no measurement of a probe"
        raise SpecError(message, hint="train with a probe: petra-graph run SPEC --set probe.per_epoch=15")
    base = output or run / "fidelity"
    base.parent.mkdir(parents=True, exist_ok=True)
    paths = {name: base.with_name(f"{base.name}-{name}.png") for name in ("training", "stages")}
    draw_over_training(found, probed, paths["training"])
    draw_over_stages(found, probed, paths["stages"])
    return {
        "run": str(run),
        "method": probed.method,
        "settings": probed.settings,
        "figures": {name: str(path) for name, path in paths.items()},
        **history_numbers(found),
    }


def _resolved(run: Path) -> Mapping[str, Any]:
    """Read the specification that a run resolved.

    Raises:
        SpecError: this is no run's directory.
    """
    try:
        text = (run / "resolved.toml").read_text(encoding="utf-8")
        (run / "metrics.jsonl").open(encoding="utf-8").close()
    except OSError:
        raise SpecError(
            f"{run} is no run's directory: it has no resolved.toml and metrics.jsonl",
            hint="name one that `petra-graph run` has made, as in runs/20260131T120000Z-NAME-3f9a1c",
        ) from None
    return tomllib.loads(text)


def _probed_run(resolved: Mapping[str, Any]) -> ProbedRun:
    method = resolved["method"]
    keeps = {node["name"]: method.get(node["kind"]) for node in resolved["graph"]["node"]}
    return ProbedRun(
        name=resolved["name"],
        method=method["name"],
        settings=f"{schedule_text(method['schedule'])}, accumulation {method['accumulation']}",
        reconstructing=frozenset(
            place
            for place, nodes in enumerate(resolved["partition"]["stages"], start=1)
            if any(keeps[node] == "nothing" for node in nodes)
        ),
    )
