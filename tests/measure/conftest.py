"""Graphs with a block class of a test's own, and what is said of a graph that cannot be measured."""

from __future__ import annotations

import pytest

from petra_graph.errors import Problem, SpecError
from petra_graph.graph.node_graph import NodeInput, build_graph
from petra_graph.measure.node_shapes import measure_shapes
from petra_graph.plugins.contract import plugin_of
from petra_graph.plugins.data_set import DataFacts
from petra_graph.plugins.kinds import BLOCK
from petra_graph.spec.model import NodeSpec
from tests.support.pipelines import node, node_inputs

STEM = node("stem", "linear-stem", features=6)
HEAD = node("head", "pool-linear", outputs=5)
IMAGE = (3, 6, 6)


@pytest.fixture
def refused():
    """Measure a graph that cannot run, and return its problems."""

    def problems_of(graph, sample) -> list[Problem]:
        with pytest.raises(SpecError) as caught:
            measure_shapes(graph, DataFacts(shape=sample, dtype="float32"))
        return list(caught.value.problems)

    return problems_of


@pytest.fixture
def made():
    """A graph stem, mine, head with a block class of the test's own in one or several nodes in the middle."""

    def graph_with(block: type, kind: str | None = None, nodes: tuple[str, ...] = ("mine",)):
        plugin = plugin_of(BLOCK, "mine", block, "mine")
        tables = node_inputs((STEM, HEAD))
        mine = [
            NodeInput(
                spec=NodeSpec(name=name, block="mine", kind=kind),
                plugin=plugin.read({})[0],
                path=("graph", "node", index),
            )
            for index, name in enumerate(nodes, start=1)
        ]
        graph, problems = build_graph([tables[0], *mine, tables[1]])
        assert not problems
        return graph

    return graph_with
