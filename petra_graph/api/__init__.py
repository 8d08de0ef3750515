"""The Python API: functions, and the plans and runs that they return."""

from petra_graph.api.finished_run import Run, load, open_run
from petra_graph.api.spec_to_run import PlanView, load_spec, make_spec, plan, train
from petra_graph.spec.in_code import buffered, from_torch, head

__all__ = [
    "PlanView",
    "Run",
    "buffered",
    "from_torch",
    "head",
    "load",
    "load_spec",
    "make_spec",
    "open_run",
    "plan",
    "train",
]
