"""Table 3 of the paper, from the specification of its network."""

from __future__ import annotations

import pytest

from petra_graph.compiler.lower import Lowering, partition, per_block
from petra_graph.measure.costs import measure_costs
from petra_graph.planning.check_spec import check_spec
from petra_graph.planning.plan_spec import paper_accounting
from petra_graph.program.method import METHODS
from tests.support import ROOT
from tests.support.costs import conditions
from tests.support.pipelines import message_types

GIGABYTES = {"pipedream": 44.45, "dsp": 43.58, "delayed-reconstructed": 21.20, "petra": 20.33}
SAVINGS_PERCENT = {"dsp": 2.0, "delayed-reconstructed": 52.3, "petra": 54.3}


@pytest.fixture(scope="module")
def counted():
    checked = check_spec(str(ROOT / "specs" / "revnet50_imagenet.toml"))
    graph = checked.graph
    table = measure_costs(graph, conditions((3, 224, 224), batch=64, facts=checked.facts))
    messages = message_types({name: len(node.output_bytes) for name, node in table.nodes.items()})
    made = partition(graph, per_block(graph), ("cpu",))

    def count(method: str, k: int = 1):
        chosen = METHODS[method]
        lowering = Lowering(graph=graph, method=chosen, accumulation=k, messages=messages)
        programs = lowering.programs(made, "lockstep")
        return paper_accounting(programs, table)

    return count


def test_gigabytes(counted):
    assert {method: round(counted(method)["total"] / 1e9, 2) for method in GIGABYTES} == GIGABYTES


def test_savings(counted):
    whole = counted("pipedream")["total"]
    found = {method: round(100 * (1 - counted(method)["total"] / whole), 1) for method in SAVINGS_PERCENT}
    assert found == SAVINGS_PERCENT


def test_longer_windows_need_fewer_copies(counted):
    assert counted("pipedream", 8)["parameter_buffer"] < counted("pipedream")["parameter_buffer"] / 4
