"""What a run says of itself before it trains: its figures, what was decided for it, its warnings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from petra_graph.compiler.spec_checks import device_count
from petra_graph.errors import shown
from petra_graph.planning.run_advice import products_note, run_warnings
from petra_graph.program.device_types import device_types
from petra_graph.program.plan_document import Document
from petra_graph.program.schedule import schedule_text
from petra_graph.training.prepared_run import Prepared


def outline(prepared: Prepared) -> dict[str, Any]:
    """Return the figures that `run --dry-run` prints."""
    spec, network, opened = prepared.spec, prepared.network, prepared.opened
    return {
        "name": spec.name,
        "nodes": len(network.graph.nodes),
        "stages": len(prepared.programs),
        "parameters": network.parameters_in(prepared.programs),
        "method": network.checked.method.name,
        "schedule": schedule_text(prepared.placement.schedule),
        "accumulation": spec.method.accumulation,
        "devices": list(dict.fromkeys(program.device for program in prepared.programs)),
        "training samples": len(opened.data.train),
        **({} if opened.data.validation is None else {"validation samples": len(opened.data.validation)}),
        "test samples": len(opened.data.test),
        "micro-batches": spec.run.epochs * len(opened.batches),
        "updates": opened.horizon.updates,
    }


def run_notes(prepared: Prepared) -> list[str]:
    """Return what was decided for the run, or has a choice, in sentences."""
    products = products_note(prepared.spec.precision, {"cuda"} if prepared.on_cuda else ())
    return [*prepared.placement.notes, *products]


def start_warnings(prepared: Prepared, processes: int, plan: Document | None = None) -> Iterator[str]:
    """Yield the warnings of devices and cores that are not here, and of the plan."""
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
