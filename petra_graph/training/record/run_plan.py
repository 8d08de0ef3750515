"""The plan of a run, as files of its directory: of a run that was given one, or whose placement was decided by costs.

Any other run has no plan: all is decided without costs, and no training reads a prediction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from petra_graph.errors import PetraGraphError
from petra_graph.planning.place.saved_plan import SavedPlan
from petra_graph.program.plan_document import Document
from petra_graph.record.run_directory import PLAN, TIMELINE, write_json, write_text
from petra_graph.report.plan.plan_contents import ticks_once_full
from petra_graph.spec.model import Spec
from petra_graph.training.prepared_run import Prepared

_MOST_DRAWN = 64
"""More stages are not simulated for a picture: it takes time, and no reader could tell them apart."""
_TICKS = 5
"""The number of ticks of the simulated timeline that are kept for a report."""


def write_plan(prepared: Prepared, directory: Path) -> Document | None:
    """Write the plan of a run, and return it: the one that it was given, or that of a placement which costs have decided.

    A run that is resumed keeps the plan that is there; None: it has none.
    """
    if prepared.saved is not None:
        document = prepared.saved.document
    elif prepared.placement.by_cost:
        from petra_graph.planning.predict_plan import predict  # imports the planner, which other runs do not need

        drawn = len(prepared.programs) <= _MOST_DRAWN
        plan = predict(prepared.network, prepared.placement)
        document = plan.document(with_timeline=drawn)
    else:
        with suppress(PetraGraphError):
            return SavedPlan.read(str(directory)).document
        return None
    write_json(directory / PLAN, document | {"timeline": []})
    write_text(directory / TIMELINE, json.dumps(ticks_once_full(document, _TICKS)) + "\n")
    return document


def figures_of(document: Document, spec: Spec) -> Mapping[str, Any]:
    """Return the figures of a plan that a summary has."""
    return {
        "samples_per_second": round(document["timing"]["samples_per_second"], 1),
        "memory_bytes": document["totals"]["bytes"]["total"],
        "from": "profile" if spec.partition.profile else "data sheet",
    }
