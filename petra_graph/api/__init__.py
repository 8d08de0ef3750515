"""The Python API: functions, and the plans and runs that they return."""

from petra_graph.api.finished_run import Run, evaluate, load
from petra_graph.api.plan_view import PlanTable, PlanView
from petra_graph.api.spec_to_run import load_spec, make_spec, plan, train

__all__ = [
    "PlanTable",
    "PlanView",
    "Run",
    "evaluate",
    "load",
    "load_spec",
    "make_spec",
    "plan",
    "train",
]
