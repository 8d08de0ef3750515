"""The output streams of a graph's nodes, measured without memory, and the messages where they cannot run."""

from __future__ import annotations

import pytest

from petra_graph.errors import Problem
from petra_graph.measure.node_shapes import NodeShapes, measure_shapes
from petra_graph.plugins.data_set import DataFacts
from tests.support.pipelines import GRAPHS, REVNET, SHAPES, built_graph, node, pipeline

STEM = node("stem", "linear-stem", features=6)
HEAD = node("head", "pool-linear", outputs=5)
IMAGE = (3, 6, 6)


def test_shapes_and_parameters_of_a_revnet():
    assert measure_shapes(built_graph(REVNET), DataFacts(shape=IMAGE, dtype="float32")) == {
        "stem": NodeShapes(inputs=(IMAGE,), outputs=((4, 6, 6),) * 2, parameters=(27 + 1 + 2) * 8),
        "a0": NodeShapes(inputs=((4, 6, 6),) * 2, outputs=((4, 6, 6),) * 2, parameters=2 * (9 * 4 + 1 + 2) * 4),
        "a1": NodeShapes(inputs=((4, 6, 6),) * 2, outputs=((4, 6, 6),) * 2, parameters=2 * (9 * 4 + 1 + 2) * 4),
        "down": NodeShapes(
            inputs=((4, 6, 6),) * 2,
            outputs=((6, 3, 3),) * 2,
            parameters=((9 * 4 + 3) + (9 * 6 + 3) + (4 + 3)) * 6,
        ),
        "b0": NodeShapes(inputs=((6, 3, 3),) * 2, outputs=((6, 3, 3),) * 2, parameters=2 * (9 * 6 + 1 + 2) * 6),
        "head": NodeShapes(inputs=((6, 3, 3),) * 2, outputs=((5,),), parameters=(12 + 1) * 5),
    }


@pytest.mark.parametrize("graph", GRAPHS)
def test_what_is_measured_is_what_is_trained(graph):
    built = pipeline(GRAPHS[graph], SHAPES[graph])
    trained = {
        name: sum(p.numel() for p in module.parameters())
        for executor in built.executors
        for name, module in executor.modules.items()
    }
    assert {name: shapes.parameters for name, shapes in built.network.shapes.items()} == trained


def test_too_few_streams(refused):
    nodes = (node("stem", "linear-stem", features=6, streams=1), node("rev", "rev-mlp", hidden=7), HEAD)
    assert refused(built_graph(nodes), (8,)) == [
        Problem(
            message='node "rev": block "rev-mlp" reads 2 streams, and its inputs carry 1',
            hint="a stem with streams = 2 feeds reversible blocks",
            path=("graph", "node", 1),
        )
    ]


def test_every_branch_is_walked_to_its_first_fault(refused):
    nodes = (
        STEM,
        node("left", "add", inputs=["stem"], streams=3),
        node("right", "add", inputs=["stem"], streams=5),
        node("join", "add", inputs=["left", "right"], streams=7),
        HEAD,
    )
    assert [problem.path[-1] for problem in refused(built_graph(nodes), (8,))] == [1, 2]
