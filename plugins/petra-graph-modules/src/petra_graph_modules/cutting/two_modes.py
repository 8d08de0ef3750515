"""The graphs of a forward in training and in evaluation: which operations are the same, and what each returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import fx
from torch.utils._pytree import tree_map_only

from petra_graph_modules.cutting.cannot_cut import CannotCut


def expect_alike(one: fx.Graph, other: fx.Graph, when: str) -> None:
    hint = "put what differs into a module of its own, which is then one operation of the graph"
    for first, second in zip(one.nodes, other.nodes, strict=False):
        if (first.op, first.target) != (second.op, second.target):
            raise CannotCut(f"{first.meta.get('line', '')}: its forward does other operations {when}", hint)
    if len(one.nodes) != len(other.nodes):
        raise CannotCut(f"its forward does other operations {when}", hint)


def twins_of(training: fx.Graph, evaluation: fx.Graph) -> Mapping[fx.Node, fx.Node]:
    """Return the operation of evaluation for each of training; evaluation may leave out some, and does no others."""
    try:
        expect_alike(training, evaluation, "in training and in evaluation")
    except CannotCut:
        *operations, output = evaluation.nodes
        ahead, found = iter(training.nodes), dict[fx.Node, fx.Node]()
        for node in operations:
            reads = [found[one] for one in node.all_input_nodes]
            same = (one for one in ahead if (one.op, one.target, one.all_input_nodes) == (node.op, node.target, reads))
            if (twin := next(same, None)) is None:
                raise
            found[node] = twin
        *_, last = training.nodes
        return {twin: node for node, twin in found.items()} | {last: output}
    return dict(zip(training.nodes, evaluation.nodes, strict=True))


def returned(training: fx.Graph, evaluation: fx.Graph, twins: Mapping[fx.Node, fx.Node]) -> Mapping[bool, Any]:
    """Return the structures of both modes, and let the graph of training return each value once, those of evaluation first."""
    of_evaluation = {twin: node for node, twin in twins.items()}
    *_, output = training.nodes
    *_, output_of_evaluation = evaluation.nodes
    values = [of_evaluation[one] for one in output_of_evaluation.all_input_nodes]
    if not {*values} <= {*output.all_input_nodes}:
        hint = "return it in training too, and let the loss pass over it"
        raise CannotCut("its forward returns a tensor in evaluation that it does not return in training", hint)
    ordered = list(dict.fromkeys([*values, *output.all_input_nodes]))

    def places(graph_output: fx.Node, value_of: Callable[[fx.Node], fx.Node]) -> Any:
        given: Any = graph_output.args[0]
        nodes = [given] if isinstance(given, fx.Node) else given
        return tree_map_only(int, lambda at: ordered.index(value_of(nodes[at])), graph_output.meta["structure"])

    found = {True: places(output, lambda one: one), False: places(output_of_evaluation, of_evaluation.__getitem__)}
    output.args = (ordered[0] if len(ordered) == 1 else tuple(ordered),)
    return found
