"""What a run says of itself before it trains: its plan, if there is one, and its warnings.

A run has a plan if it was given one, or if its placement was decided by costs. Any other run has none: all is decided without costs,
and no training reads a prediction.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from petra_graph.compiler.spec_checks import device_count
from petra_graph.errors import PetraGraphError, shown
from petra_graph.kinds.callback import misnamed
from petra_graph.planning.advice.run_warnings import run_warnings
from petra_graph.planning.place.saved_plan import SavedPlan
from petra_graph.program.device_types import device_types
from petra_graph.program.plan_document import Document
from petra_graph.record.run_directory import PLAN, TIMELINE, write_json, write_text
from petra_graph.report.plan.plan_contents import ticks_once_full
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


def start_warnings(prepared: Prepared, processes: int, plan: Document | None = None) -> Iterator[str]:
    """Yield the warnings of the self-check, of callbacks' methods that no run calls, of devices and cores that are not here, and of the plan."""
    yield from prepared.tried.doubts
    for one in prepared.callbacks:
        for name, meant in misnamed(one.callback):
            more = f": call it `{meant}`" if meant else ""
            yield f'callback "{one.name}" defines `{name}`, which no run calls{more}'
    yield from _absent_devices(prepared)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", processes))
    need, cores = here * prepared.spec.run.threads, len(os.sched_getaffinity(0))
    if here > 1 and need > cores and prepared.programs[0].device.startswith("cpu"):
        yield f"{here} processes on this machine need {need} cores for the speed of the plan, but it has {cores}"
    yield from run_warnings(prepared.network, prepared.programs) if plan is None else plan["warnings"]


def _absent_devices(prepared: Prepared) -> Iterator[str]:
    """Yield what the specification says of devices that are not here: a plan may assume them, a run cannot use them."""
    partition, present = prepared.spec.partition, prepared.placement.devices
    planned, types = device_count(partition), partition.device_type or ()
    if len(present) == 1 and planned > 1:
        more = f"; --processes {planned} starts a process for each" if present[0].name == "cpu" else ""
        yield f"partition.devices is {planned}, but only {present[0].name} is here: it runs all stages{more}"
    known, used = device_types(partition), dict.fromkeys(program.device for program in prepared.programs)
    asked = {known[name].kind for name in ((types,) if isinstance(types, str) else types)}
    if asked - {name.partition(":")[0] for name in used}:
        yield (
            f"partition.device_type is {shown(types)}, but the run computes on {', '.join(used)}: "
            "the device type is for plans, and the run's speed and memory are others"
        )
