"""The graph as a Mermaid flowchart: stages are boxes around their nodes, coloured by device.

Mermaid reads many characters as syntax even within quotes; so nodes get numbers for names, and every character of a label that is
not plain goes as a character code. Viewers draw 500 edges by default: larger graphs need `maxEdges` in their settings.
"""

from __future__ import annotations

from collections.abc import Iterator

from petra_graph.report.plan.document import Document
from petra_graph.report.plan.labels import edge_label
from petra_graph.report.plan.palette import device_colours
from petra_graph.report.plan.units import one_line

_SHAPES = {"reversible": ('("', '")'), "buffered": ('["', '"]'), "head": ('(["', '"])')}
_PLAIN = frozenset(" .,:/_-+=→")


def mermaid(document: Document) -> str:
    """Write a plan's graph as Mermaid text.

    Reversible nodes have round corners, buffered ones square corners, the head is round. Edges between stages tell
    what a micro-batch sends forwardand how many messages a channel holds.
    """
    return "\n".join([*_lines(document), ""])


def _lines(document: Document) -> Iterator[str]:
    numbers = {node["name"]: place for place, node in enumerate(document["nodes"])}
    nodes = {node["name"]: node for node in document["nodes"]}
    classes = {device: place for place, device in enumerate(device_colours(document))}
    yield "flowchart LR"
    for stage in document["stages"]:
        title = f"stage {stage['index']}, {stage['device']}, depth {stage['depth']}"
        yield f'  subgraph s{stage["index"]}["{_escaped(title)}"]'
        for name in stage["nodes"]:
            opening, closing = _SHAPES[nodes[name]["kind"]]
            yield f"    n{numbers[name]}{opening}{_escaped(name)}{closing}:::d{classes[stage['device']]}"
        yield "  end"
    for edge in document["edges"]:
        producer, consumer = numbers[edge["producer"]], numbers[edge["consumer"]]
        label = f'|"{_escaped(edge_label(edge))}"|' if edge["cut"] else ""
        yield f"  n{producer} -->{label} n{consumer}"
    for device, colour in device_colours(document).items():
        yield f"  classDef d{classes[device]} fill:{colour},stroke:#444,color:#000"


def _escaped(text: str) -> str:
    """Write a label within quotes: what is neither letter, digit nor plain becomes a character code."""
    return "".join(letter if letter.isalnum() or letter in _PLAIN else f"#{ord(letter)};" for letter in one_line(text))
