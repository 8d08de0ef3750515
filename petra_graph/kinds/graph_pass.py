"""A graph pass: a table `[NAME]` of a specification, and a function that changes the network's graph as the table says.

A pass is given the network once its shapes are measured (`petra_graph.graph_passes`). What it changes of a node's block is a wrapper of the
node, so that the node's own block and options stay as the specification has them.
"""

from __future__ import annotations

from attrs import frozen

from petra_graph.kinds.declaration import Declaration
from petra_graph.kinds.plugin_kind import Form, PluginKind


@frozen(kw_only=True)
class GraphPassDeclaration(Declaration):
    """A table of a specification, whose keys are the options; `build` names a function (options, MeasuredGraph) -> NodeGraph.

    It may raise `SpecError`, with problems whose paths count from the specification: ("untie", "nodes"), or that of a node.

    Attributes:
        order: passes with smaller numbers come first, those with the same one by their names.
        notes: the location of a function (options, NodeGraph, difference) -> sentences about the changed network, or "". `difference()` is
            that of the network's first output before the training, over the norm of the output without graph passes.
        warnings: the location of a function (options, MeasuredGraph) -> sentences, what to know of the changed network, or "".
    """

    order: int = 0
    notes: str = ""
    warnings: str = ""


GRAPH_PASS = PluginKind(
    noun="graph pass",
    plural="graph passes",
    group="petra_graph.graph_passes",
    declaration=GraphPassDeclaration,
    form=Form(
        fits=lambda _: False,  # a table needs a declaration, which has its meaning and its keys
        otherwise="is not a declaration of a graph pass",
    ),
)
