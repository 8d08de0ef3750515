"""The paper's own accounting of memory (table 3), to be shown beside the true one, never instead of it.

For a node with P parameters, R running statistics and an input of S values, in a stage of staleness tau:

    model             P + R + S
    input buffer      S tau             where the node keeps its input
    parameter buffer  P ceil(tau / k)   where the backward uses the forward's parameters

All in float32. S counts one stream of a reversible node and of the head, and all of a buffered node, so a reversible node's
stored input is under-counted by half. The first node's input buffer is counted in the rows where reversible nodes keep
their inputs, and left out of the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from petra_graph.graph.node_graph import INPUT
from petra_graph.program.node_costs import CostTable, NodeCost
from petra_graph.program.stage_bytes import PaperBytes
from petra_graph.program.stage_program import StageProgram

_BYTES = 4
"""A value's."""


def paper_accounting(programs: Sequence[StageProgram], costs: CostTable) -> PaperBytes:
    """Count all stages' memory as the paper does."""
    model = input_buffer = parameter_buffer = 0
    segments = [segment for program in programs for segment in program.segments]
    kinds = {segment.keeps for segment in segments if segment.kind == "reversible"}
    samples_count = kinds != {"nothing"}
    for program in programs:
        staleness = program.depth - 1
        for segment in program.segments:
            for name in segment.nodes:
                node = costs.nodes[name]
                model += node.parameters + node.statistics + _inputs(node)
                if segment.backward == "stored" and segment.kind != "head":
                    parameter_buffer += node.parameters * -(-staleness // program.accumulation)
            first = costs.nodes[segment.nodes[0]]
            reads_samples = any(entry.edge.producer == INPUT for entry in segment.inputs)
            if segment.kind != "head" and segment.keeps != "nothing" and (samples_count or not reads_samples):
                input_buffer += _inputs(first) * staleness
    return PaperBytes(
        model=_BYTES * model, input_buffer=_BYTES * input_buffer, parameter_buffer=_BYTES * parameter_buffer
    )


def _inputs(node: NodeCost) -> int:
    """Return the number of input values that count for a node."""
    return sum(node.input_values) if node.kind == "buffered" else node.input_values[0]
