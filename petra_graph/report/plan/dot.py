"""The graph in Graphviz's language: stages are clusters, nodes are coloured by device."""

from __future__ import annotations

from collections.abc import Iterator

from petra_graph.report.plan.document import Document
from petra_graph.report.plan.labels import edge_label
from petra_graph.report.plan.palette import device_colours
from petra_graph.report.plan.units import count, one_line

_SHAPES = {"reversible": 'shape=box, style="rounded,filled"', "buffered": "shape=box", "head": "shape=oval"}


def dot(document: Document) -> str:
    """Write a plan's graph for `dot -Tsvg`.

    Reversible nodes have round corners, buffered ones square corners, the head is an oval. Edges between stages tell
    what a micro-batch sends forwardand how many messages a channel holds.
    """
    return "\n".join([*_lines(document), ""])


def _lines(document: Document) -> Iterator[str]:
    numbers = {node["name"]: place for place, node in enumerate(document["nodes"])}
    nodes = {node["name"]: node for node in document["nodes"]}
    colours = device_colours(document)
    yield f"digraph {_quoted(document['name'])} {{"
    yield "  rankdir=LR;"
    yield '  fontname="sans-serif";'
    yield '  node [style=filled, fontname="sans-serif", color="#444444"];'
    yield '  edge [fontname="sans-serif", fontsize=10, color="#444444"];'
    for stage in document["stages"]:
        title = f"stage {stage['index']}, {stage['device']}, depth {stage['depth']}"
        yield f"  subgraph cluster_{stage['index']} {{"
        yield f'    label={_quoted(title)}; fontsize=10; style=rounded; color="#999999";'
        for name in stage["nodes"]:
            yield f"    n{numbers[name]} {_node(nodes[name], colours[stage['device']])}"
        yield "  }"
    for edge in document["edges"]:
        label = f" [label={_quoted(edge_label(edge))}]" if edge["cut"] else ""
        yield f"  n{numbers[edge['producer']]} -> n{numbers[edge['consumer']]}{label};"
    yield "}"


def _node(node: Document, colour: str) -> str:
    tooltip = f"{node['kind']}, {node['block']}, {count(node['parameters'])} parameters"
    return (
        f"[label={_quoted(node['name'])}, {_SHAPES[node['kind']]}, fillcolor={_quoted(colour)}, "
        f"tooltip={_quoted(tooltip)}];"
    )


def _quoted(text: str) -> str:
    """Write a string within quotes; a backslash would begin an escape, an ampersand a character's name."""
    escaped = one_line(text).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
