"""The Python API: functions, and the plans and runs that they return."""

from petra_graph.api.functions import evaluate, export, load, load_spec, make_spec, plan, predict, train
from petra_graph.api.views import PlanView, Run

__all__ = ["PlanView", "Run", "evaluate", "export", "load", "load_spec", "make_spec", "plan", "predict", "train"]
