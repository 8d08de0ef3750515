"""The simulated timeline of a plan as trace JSON, which https://ui.perfetto.dev opens: a device is a process, a stage one of its threads."""

from __future__ import annotations

import json
from typing import Any

from petra_graph.compiler.plan import Plan
from petra_graph.report.plan_text import nodes_label


def trace(plan: Plan) -> str:
    """Write a plan's timeline as trace JSON."""
    events, processes = list[dict[str, Any]](), {device.name: at for at, device in enumerate(plan.devices, start=1)}
    stages = [(processes[one.device], one.index, f"stage {one.index}: {nodes_label(one.nodes)}") for one in plan.stages]
    named = [("process_name", number, 0, name) for name, number in processes.items()]
    named += [("thread_name", *stage) for stage in stages]
    for what, process, thread, name in named:
        events.append({"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}})
    for block in plan.timeline:
        about = {"verb": block.verb, "micro_batch": block.micro_batch, "stage": block.stage}
        # In microseconds with three decimals: viewers count in nanoseconds.
        span = {"ts": round(block.start * 1e6, 3), "dur": round((block.end - block.start) * 1e6, 3)}
        place = {"pid": processes[block.device], "tid": block.stage, **span, "args": about}
        events.append({"name": f"{block.verb[0].upper()}{block.micro_batch}", "cat": block.verb, "ph": "X", **place})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"))
