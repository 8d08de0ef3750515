"""From a specification to training nothing is checked, measured, cut or predicted twice in a process; a run predicts only what costs decide."""

from __future__ import annotations

import sys
from collections import Counter
from importlib import import_module

import pytest

from petra_graph.compiler import node_table
from petra_graph.compiler.listed_stages import partition
from petra_graph.compiler.spec_checks import check_depths, check_method
from petra_graph.kinds.listener import Listener
from petra_graph.measure.cost_table import measure_costs
from petra_graph.measure.node_shapes import measure_shapes
from petra_graph.planning.plan_spec import plan
from petra_graph.planning.predict_plan import predict
from petra_graph.registry.registry import discover
from petra_graph.spec.load_spec import load
from petra_graph.training.training_run import run
from tests.support.runs import SPEC

STEPS = (
    load, discover, check_method, check_depths, partition, measure_shapes, measure_costs, predict,
)  # fmt: skip
WITH_PRECISION = f'{SPEC}\n[precision]\ncompute = "float32"\n'
LISTED = "partition.stages=[['stem', 'rev.0'], ['rev.1', 'head']]"
CUT = "partition.stages=2"
TWO = ("partition.devices=2", "partition.device_type=cpu")
IN_THE_SOLVER = (node_table.__name__,)
"""It cuts stages of its own, one a node."""
import_module(
    "petra_graph.planning.place.search_placement"
)  # before calls are counted; a plan imports it when it searches


@pytest.fixture
def calls(monkeypatch):
    """Count calls of each step, wherever it was imported."""
    counts = Counter()

    def counted(step):
        def wrapper(*args, **kwargs):
            counts[step.__name__] += 1
            return step(*args, **kwargs)

        return wrapper

    wrappers = {step: counted(step) for step in STEPS}
    for name, module in list(sys.modules.items()):
        if name.startswith("petra_graph") and name not in IN_THE_SOLVER:
            for attribute, value in list(vars(module).items()):
                if callable(value) and getattr(value, "__hash__", None) and value in wrappers:
                    monkeypatch.setattr(module, attribute, wrappers[value])
    return counts


def _plan(path, overrides):
    plan(path, overrides).document(with_timeline=False)


def _run(path, overrides):
    run(path, (*overrides, "run.epochs=1"), Listener())


@pytest.mark.parametrize("use", [_plan, _run])
@pytest.mark.parametrize("overrides", [(), (LISTED,), (LISTED, *TWO), (CUT, *TWO)])
def test_each_step_once(write, calls, use, overrides):
    use(write("small.toml", WITH_PRECISION), overrides)
    needs_no_costs = use is _run and CUT not in overrides
    assert calls == {step.__name__: 1 for step in STEPS if not (needs_no_costs and step in (measure_costs, predict))}


@pytest.mark.parametrize("use", [_plan, _run])
def test_one_partition_for_each_cut_that_is_tried(write, calls, use):
    use(write("small.toml", WITH_PRECISION), (CUT, *TWO, "partition.memory=1GiB"))
    assert (
        calls.pop("partition") == calls.pop("check_depths") <= 2 * 3
    )  # three cuts of four nodes, for time and for memory
    assert set(calls.values()) == {1}
