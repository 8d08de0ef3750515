"""The bytes of a partition problem's items."""

from __future__ import annotations

import pytest
from attrs import evolve

from petra_graph.compiler.node_seconds import node_table
from petra_graph.compiler.partition_problem import partition_problem
from petra_graph.program.node_costs import Work
from tests.support.settings import chain_costs, setting


@pytest.mark.parametrize("operation", ["predict", "estimate"])
def test_a_node_has_one_more_version_of_its_parameters_for_a_delay(operation):
    nodes = {
        name: evolve(one, work={**one.work, operation: Work(kept_bytes=one.parameter_bytes)})
        for name, one in chain_costs().nodes.items()
    }
    found = []
    for table in (chain_costs(), evolve(chain_costs(), nodes=nodes)):
        used = setting(2, table=table)
        found.append(partition_problem(used, node_table(used), 2, "balanced", [None, None]))
    plain, corrected = found
    assert [item.version_bytes for item in plain.items] == [0] * len(nodes)
    last = len(nodes) - 1
    assert [item.version_bytes for item in corrected.items] == [
        nodes[item.name].parameter_bytes * (index < last) for index, item in enumerate(corrected.items)
    ]
    assert corrected.depth_rule.most_versions == 1
