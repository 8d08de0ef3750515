"""The graph as Mermaid text or Graphviz text: stages are boxes around their nodes, nodes are coloured by device.

Reversible nodes have round corners, buffered nodes square corners, the head is round. An edge between stages is labelled
with the bytes that a micro-batch sends forward and with the capacity of its channel. Nodes get numbers for names, since
both languages read many characters as syntax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from petra_graph.program.plan_document import Document
from petra_graph.report.plan.labels import edge_label, stage_label
from petra_graph.report.plan.palette import device_colours
from petra_graph.report.plan.units import count, one_line

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

    def box(stage: Document) -> str:
        return f'  subgraph s{stage["index"]}["{_mermaid_escaped(stage_label(stage))}"]'

    def node(key: str, made: Document, device: str) -> str:
        opening, closing = _MERMAID_SHAPES[made["kind"]]
        return f"    {key}{opening}{_mermaid_escaped(made['name'])}{closing}:::{classes[device]}"

    def edge(producer: str, consumer: str, label: str) -> str:
        labelled = f'|"{_mermaid_escaped(label)}"|' if label else ""
        return f"  {producer} -->{labelled} {consumer}"

    styles = [
        f"  classDef {classes[device]} fill:{colour},stroke:#444,color:#000" for device, colour in colours.items()
    ]
    return "\n".join(["flowchart LR", *_graph(document, box, node, "  end", edge), *styles, ""])


def dot(document: Document) -> str:
    """Write a plan's graph for `dot -Tsvg`."""
    colours = device_colours(document)

    def box(stage: Document) -> str:
        label = f'    label={_dot_quoted(stage_label(stage))}; fontsize=10; style=rounded; color="#999999";'
        return f"  subgraph cluster_{stage['index']} {{\n{label}"

    def node(key: str, made: Document, device: str) -> str:
        tooltip = f"{made['kind']}, {made['block']}, {count(made['parameters'])} parameters"
        return (
            f"    {key} [label={_dot_quoted(made['name'])}, {_DOT_SHAPES[made['kind']]}, "
            f"fillcolor={_dot_quoted(colours[device])}, tooltip={_dot_quoted(tooltip)}];"
        )

    def edge(producer: str, consumer: str, label: str) -> str:
        return f"  {producer} -> {consumer}{f' [label={_dot_quoted(label)}]' if label else ''};"

    head = f"digraph {_dot_quoted(document['name'])} {{"
    return "\n".join([head, _DOT_DEFAULTS, *_graph(document, box, node, "  }", edge), "}", ""])


def _graph(
    document: Document,
    box: Callable[[Document], str],
    node: Callable[[str, Document, str], str],
    end: str,
    edge: Callable[[str, str, str], str],
) -> Iterator[str]:
    """Write each stage with its nodes, then the edges.

    Args:
        document: the plan.
        box: begins a stage.
        node: writes a node from its key, itself and its device.
        end: ends a stage.
        edge: writes an edge from the keys of its ends and its label, which is empty within a stage.
    """
    keys = {made["name"]: f"n{place}" for place, made in enumerate(document["nodes"])}
    nodes = {made["name"]: made for made in document["nodes"]}
    for stage in document["stages"]:
        yield box(stage)
        yield from (node(keys[name], nodes[name], stage["device"]) for name in stage["nodes"])
        yield end
    for made in document["edges"]:
        yield edge(keys[made["producer"]], keys[made["consumer"]], edge_label(made) if made["cut"] else "")


def _mermaid_escaped(text: str) -> str:
    """Write a label within quotes: a character that is neither letter, digit nor plain becomes a character code."""
    return "".join(
        letter if letter.isalnum() or letter in _MERMAID_PLAIN else f"#{ord(letter)};" for letter in one_line(text)
    )


def _dot_quoted(text: str) -> str:
    """Write a string within quotes; a backslash would begin an escape, an ampersand a character's name."""
    escaped = one_line(text).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
