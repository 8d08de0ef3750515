"""Mermaid and Graphviz text: every line is of the language, whatever the names are."""

from __future__ import annotations

import re

import pytest

from petra_graph.report.plan.graph_languages import dot, mermaid
from tests.support.plan_documents import branches, hostile, revnet50, three_stages

PLANS = [three_stages, branches, revnet50, hostile]

# A label is plain characters and character codes.
LABEL = r'"(?:[\w .,:/+=→-]|#\d+;)*"'
MERMAID = [
    r"flowchart LR",
    rf"  subgraph s\d+\[{LABEL}\]",
    rf"    n\d+(?:\({LABEL}\)|\[{LABEL}\]|\(\[{LABEL}\]\)):::d\d+",
    r"  end",
    rf"  n\d+ -->(?:\|{LABEL}\|)? n\d+",
    r"  classDef d\d+ fill:#[0-9a-f]{6},stroke:#444,color:#000",
]

STRING = r'"(?:[^"\\]|\\\\|\\")*"'
ATTRIBUTES = rf"\[\w+=(?:\w+|{STRING})(?:, \w+=(?:\w+|{STRING}))*\]"
DOT = [
    rf"digraph {STRING} {{",
    rf"  rankdir=LR;|  fontname={STRING};",
    rf"  (?:node|edge) {ATTRIBUTES};",
    r"  subgraph cluster_\d+ {",
    rf'    label={STRING}; fontsize=10; style=rounded; color="#999999";',
    rf"    n\d+ {ATTRIBUTES};",
    r"  }",
    rf"  n\d+ -> n\d+(?: {ATTRIBUTES})?;",
    r"}",
]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("write", "lines"), [(mermaid, MERMAID), (dot, DOT)])
def test_every_line_is_of_the_language(plan, write, lines):
    for line in write(plan()).splitlines():
        assert any(re.fullmatch(pattern, line) for pattern in lines), line


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(
    ("write", "arrow"), [(mermaid, r"  n(\d+) -->(?:\|.*\|)? n(\d+)"), (dot, r"  n(\d+) -> n(\d+).*")]
)
def test_every_edge_is_there_once(plan, write, arrow):
    document = plan()
    names = [node["name"] for node in document["nodes"]]
    found = [re.fullmatch(arrow, line) for line in write(document).splitlines()]
    assert [(names[int(m[1])], names[int(m[2])]) for m in found if m] == [
        (edge["producer"], edge["consumer"]) for edge in document["edges"]
    ]


@pytest.mark.parametrize("plan", PLANS)
def test_every_node_is_in_its_stages_box(plan):
    document = plan()
    names = [node["name"] for node in document["nodes"]]
    for write, box in (
        (mermaid, r"  subgraph s(\d+).*?\n(.*?)\n  end"),
        (dot, r"  subgraph cluster_(\d+) {\n(.*?)\n  }"),
    ):
        boxes = {int(index): inside for index, inside in re.findall(box, write(document), re.DOTALL)}
        for stage in document["stages"]:
            numbers = re.findall(r"^    n(\d+)", boxes[stage["index"]], re.MULTILINE)
            assert [names[int(number)] for number in numbers] == stage["nodes"]


def test_hostile_names_in_mermaid():
    assert 'n0["a#34;#93;#59;x--#62;y"]' in mermaid(hostile())


def test_hostile_names_in_dot():
    text = dot(hostile())
    assert 'label="a\\"];x-->y"' in text
    assert 'label="`#|{}<b>&amp;amp;\\\\"' in text
