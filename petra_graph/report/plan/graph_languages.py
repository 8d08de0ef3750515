"""The graph of a plan in the languages of other programs: Mermaid, Graphviz.

Stages are boxes around their nodes, and nodes are coloured by device. Reversible nodes have round corners, buffered nodes
square corners, the head is round. An edge between stages is labelled with the bytes that a micro-batch sends forward and
with the capacity of its channel. Nodes get numbers for names, since both languages read many characters as syntax.

Decision: Graphviz text is written here. networkx writes it through pydot, a further dependency, which would have to
be told the same boxes, shapes and labels.
"""

from __future__ import annotations

from collections.abc import Iterator

from petra_graph.program.plan_document import Document
from petra_graph.report.plan.plan_contents import device_colours
from petra_graph.units import count, memory, one_line

_MERMAID_SHAPES = {"reversible": ('("', '")'), "buffered": ('["', '"]'), "head": ('(["', '"])')}
_MERMAID_PLAIN = frozenset(" .,:/_-+=→")
_DOT_SHAPES = {"reversible": 'shape=box, style="rounded,filled"', "buffered": "shape=box", "head": "shape=oval"}
_DOT_DEFAULTS = """\
  rankdir=LR;
  fontname="sans-serif";
  node [style=filled, fontname="sans-serif", color="#444444"];
  edge [fontname="sans-serif", fontsize=10, color="#444444"];"""


def mermaid(document: Document) -> str:
    """Write a plan's graph as a Mermaid flowchart.

    Viewers draw 500 edges by default: larger graphs need `maxEdges` in their settings.
    """
    colours = device_colours(document)
    classes = {device: f"d{place}" for place, device in enumerate(colours)}
    lines = ["flowchart LR"]
    for stage, label, nodes in _stages(document):
        lines.append(f'  subgraph s{stage["index"]}["{_mermaid_escaped(label)}"]')
        for key, node in nodes:
            opening, closing = _MERMAID_SHAPES[node["kind"]]
            lines.append(f"    {key}{opening}{_mermaid_escaped(node['name'])}{closing}:::{classes[stage['device']]}")
        lines.append("  end")
    for producer, consumer, label in _edges(document):
        labelled = f'|"{_mermaid_escaped(label)}"|' if label else ""
        lines.append(f"  {producer} -->{labelled} {consumer}")
    lines += [
        f"  classDef {classes[device]} fill:{colour},stroke:#444,color:#000" for device, colour in colours.items()
    ]
    return "\n".join([*lines, ""])


def dot(document: Document) -> str:
    """Write a plan's graph for `dot -Tsvg`."""
    colours = device_colours(document)
    lines = [f"digraph {_dot_quoted(document['name'])} {{", _DOT_DEFAULTS]
    for stage, label, nodes in _stages(document):
        lines.append(f"  subgraph cluster_{stage['index']} {{")
        lines.append(f'    label={_dot_quoted(label)}; fontsize=10; style=rounded; color="#999999";')
        for key, node in nodes:
            tooltip = f"{node['kind']}, {node['block']}, {count(node['parameters'])} parameters"
            lines.append(
                f"    {key} [label={_dot_quoted(node['name'])}, {_DOT_SHAPES[node['kind']]}, "
                f"fillcolor={_dot_quoted(colours[stage['device']])}, tooltip={_dot_quoted(tooltip)}];"
            )
        lines.append("  }")
    for producer, consumer, label in _edges(document):
        lines.append(f"  {producer} -> {consumer}{f' [label={_dot_quoted(label)}]' if label else ''};")
    return "\n".join([*lines, "}", ""])


def _keys(document: Document) -> dict[str, str]:
    return {node["name"]: f"n{place}" for place, node in enumerate(document["nodes"])}


def _stages(document: Document) -> Iterator[tuple[Document, str, list[tuple[str, Document]]]]:
    """Yield each stage with its label, its nodes and their keys."""
    keys, nodes = _keys(document), {node["name"]: node for node in document["nodes"]}
    for stage in document["stages"]:
        label = f"stage {stage['index']}, {stage['device']}, depth {stage['depth']}"
        yield stage, label, [(keys[name], nodes[name]) for name in stage["nodes"]]


def _edges(document: Document) -> Iterator[tuple[str, str, str]]:
    """Yield the keys of each edge's ends, and its label, which is empty within a stage."""
    keys = _keys(document)
    for edge in document["edges"]:
        capacity = "" if edge["capacity"] is None else f", capacity {edge['capacity']}"
        label = f"{memory(edge['forward_bytes'])}{capacity}" if edge["cut"] else ""
        yield keys[edge["producer"]], keys[edge["consumer"]], label


def _mermaid_escaped(text: str) -> str:
    """Write a label within quotes: a character that is neither letter, digit nor plain becomes a character code."""
    return "".join(
        letter if letter.isalnum() or letter in _MERMAID_PLAIN else f"#{ord(letter)};" for letter in one_line(text)
    )


def _dot_quoted(text: str) -> str:
    """Write a string within quotes; a backslash would begin an escape, an ampersand a character's name."""
    escaped = one_line(text).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
