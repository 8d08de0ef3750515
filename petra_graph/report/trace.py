"""The simulated timeline of a plan as trace JSON, which https://ui.perfetto.dev opens: a device is a process, a stage one of its threads."""

from __future__ import annotations

import json

from petra_graph.compiler.plan import Plan
from petra_graph.report.plan_text import nodes_label


def trace(plan: Plan) -> str:
    """Write a plan's timeline as trace JSON."""
    processes = {device.name: number for number, device in enumerate(plan.devices, start=1)}
    named = [("process_name", number, 0, name) for name, number in processes.items()]
    for stage in plan.stages:
        title = f"stage {stage.index}: {nodes_label(stage.nodes)}"
        named.append(("thread_name", processes[stage.device], stage.index, title))
    events = [
        {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
        for what, process, thread, name in named
    ]
    for block in plan.timeline:
        place = {"pid": processes[block.device], "tid": block.stage}
        # In microseconds with three decimals: viewers count in nanoseconds.
        span = {"ts": round(block.start * 1e6, 3), "dur": round((block.end - block.start) * 1e6, 3)}
        about = {"verb": block.verb, "micro_batch": block.micro_batch, "stage": block.stage}
        name = f"{block.verb[0].upper()}{block.micro_batch}"
        events.append({"name": name, "cat": block.verb, "ph": "X", **place, **span, "args": about})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"))
