"""Graph passes of another package: their tables are keys of a spec, and they change nodes in their order; broken ones are named."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

import petra_graph as pg
from petra_graph.cli.main import main
from petra_graph.errors import PetraGraphError
from petra_graph.planning.check.check_spec import check_spec
from petra_graph.planning.measure_network import measure
from tests.support.runs import SPEC, only_run

DECLARED = """
from petra_graph.plugins import GraphPassDeclaration, declares, option

@declares(GraphPassDeclaration, "my_passes:frozen_nodes", order=1, notes="my_passes:notes")
class Freeze:
    "Nodes whose parameters stay as they begin."
    nodes: tuple[str, ...] = option("their names")

@declares(GraphPassDeclaration, "my_passes:looked_at")
class Zebra:
    "Nothing is changed."

BROKEN = GraphPassDeclaration(summary="None.", build="my_passes:nothing")
RAISES = GraphPassDeclaration(summary="An error.", build="my_passes:raises")
"""
PASSES = """
from attrs import evolve, frozen
from petra_graph.graph_passes import NodeGraph, NodeWrapper

@frozen(kw_only=True)
class Frozen(NodeWrapper):
    def wrap(self, block, inputs):
        return block.requires_grad_(False)

def frozen_nodes(options, graph):
    made = {name: evolve(graph.nodes[name], wrappers=(*graph.nodes[name].wrappers, Frozen())) for name in options.nodes}
    return NodeGraph(nodes={**graph.nodes, **made})

def notes(options, graph, difference):
    yield f"{len(options.nodes)} nodes are frozen, and the output differs by {difference():g}"

def looked_at(options, graph):
    assert not any(node.wrappers for node in graph.nodes.values())
    return graph.graph

def nothing(options, graph):
    return None

def raises(options, graph):
    return graph.nodes["nowhere"]
"""
ENTRIES = """[petra_graph.graph_passes]
freeze = my_declared_passes:Freeze
zebra = my_declared_passes:Zebra
broken = my_declared_passes:BROKEN
raises = my_declared_passes:RAISES
gone = my_declared_passes:GONE
data = my_declared_passes:Zebra
"""


@pytest.fixture(autouse=True)
def _installed(install):
    install("my-passes", ENTRIES, my_declared_passes=DECLARED, my_passes=PASSES)


def problem_of(spec, code):
    with pytest.raises(PetraGraphError) as caught:
        measure(check_spec(spec))
    assert caught.value.exit_code == code
    [problem] = check_spec(spec).loaded.located(caught.value.problems) if code == 4 else caught.value.problems
    return str(problem.where), problem.message


def test_it_changes_nodes_and_is_written_down(write, capsys):
    path = write("frozen.toml", SPEC + '[freeze]\nnodes = ["stem", "head"]\n[zebra]\n')
    network = measure(check_spec(path))
    assert [name for name, shapes in network.shapes.items() if not shapes.trained] == ["stem", "head"]
    assert [one.plugin.name for one in network.checked.passes] == ["zebra", "freeze"]
    assert main(["run", path]) == 0
    assert "2 nodes are frozen, and the output differs by 0" in capsys.readouterr().err
    first = load_file(only_run() / "weights.safetensors")
    assert '[freeze]\nnodes = [\n    "stem",\n    "head",\n]' in (only_run() / "resolved.toml").read_text()
    pg.train(str(only_run() / "resolved.toml"), {"run.directory": "again"})
    again = load_file(only_run("again") / "weights.safetensors")
    assert all(value.equal(again[name]) for name, value in first.items())


@pytest.mark.parametrize(
    ("table", "code", "message"),
    [
        ("[broken]", 4, 'graph pass "broken" of my-passes is broken: its build returns None, not a NodeGraph'),
        ("[raises]", 4, "graph pass \"raises\" of my-passes cannot be built: KeyError: 'nowhere'"),
        ("[freeze]", 2, "nodes is missing in [freeze]"),
        ("[freeze]\nnodes = 3", 2, "nodes in [freeze] must be a list of strings (got 3)"),
    ],
)
def test_what_is_wrong_is_said_at_the_table(write, table, code, message):
    path = write("wrong.toml", SPEC + table + "\n")
    where, found = problem_of(path, code)
    assert found == message
    assert where.startswith(f"{path}:{SPEC.count(chr(10)) + 1 + table.count(chr(10))}:")


def test_one_that_cannot_be_loaded_and_one_that_has_a_key_s_name(write):
    with pytest.raises(PetraGraphError) as caught:
        check_spec(write("gone.toml", SPEC + "[gone]\n"))
    assert caught.value.exit_code == 4
    assert "graph pass \"gone\" of my-passes cannot be loaded from 'my_declared_passes:GONE'" in str(caught.value)
    assert check_spec(write("plain.toml", SPEC)).passes == ()
