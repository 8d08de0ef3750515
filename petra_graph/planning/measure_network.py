"""The measure step: graph passes carried out, the shapes of all nodes, and what these rule out.

Neither the data set's files nor the devices are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from petra_graph.compiler.spec_checks import keep_problems
from petra_graph.errors import Problem, SpecError, at_path
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.graph_passes import MeasuredGraph
from petra_graph.kinds.author_code import author_code, resolve_location
from petra_graph.kinds.data_facts import DataFacts
from petra_graph.kinds.plugin import build_plugin
from petra_graph.measure.node_shapes import NodeShapes, measure_shapes, outputs_for, read_by_network
from petra_graph.planning.check.checked_spec import CheckedSpec, ConfiguredPlugin
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.planning.shared_across_stages import shared_parameter_problems


def measure(checked: CheckedSpec) -> MeasuredNetwork:
    """Carry out the graph passes and measure the shapes of every node.

    Raises:
        SpecError: a block or a pass refuses its input, two nodes share a parameter, or a node cannot keep what is listed for it.
        PluginError: code cannot be imported, or has failed.
    """
    graph, shapes = measure_graph(checked.graph, checked.passes, checked.facts)
    network = MeasuredNetwork(
        checked=checked,
        graph=graph,
        shapes=shapes,
        training_samples=checked.training_samples,
    )
    if problems := list(network_problems(network)):
        raise SpecError(problems)
    return network


def measure_graph(
    graph: NodeGraph, passes: Sequence[ConfiguredPlugin], facts: DataFacts
) -> tuple[NodeGraph, Mapping[str, NodeShapes]]:
    """Return a graph as passes change it, each given the graph as those before it have left it, with the shapes of its nodes.

    Raises:
        SpecError: a pass, or a block, refuses the network.
        PluginError: code cannot be imported or has failed.
    """
    sample, dtype = read_by_network(facts)
    shapes = measure_shapes(graph, sample, dtype)
    for one in passes:
        with at_path(*one.path):
            made = build_plugin(one.plugin, one.options, MeasuredGraph(graph=graph, shapes=shapes))
            if not isinstance(made, NodeGraph):
                raise one.plugin.broken(f"its build returns {type(made).__name__}, not a NodeGraph")
        if made is not graph:
            graph = NodeGraph(nodes=made.nodes, given=graph.as_given)
            shapes = measure_shapes(graph, sample, dtype)
    return graph, shapes


def network_problems(network: MeasuredNetwork) -> Iterator[Problem]:
    """Yield what shapes and passes show to be wrong: what nodes keep, parameters of two nodes."""
    yield from keep_problems(network.spec.method, network.graph)
    yield from shared_parameter_problems(network.graph, network.shapes)


def what_a_pass_says(
    configured: ConfiguredPlugin, kind: Literal["notes", "warnings"], *arguments: Any
) -> Iterator[str]:
    """Yield what a graph pass says of the network that it has changed; nothing if it declares no such function.

    Raises:
        PluginError: its code cannot be imported or has failed.
    """
    location = getattr(configured.plugin.declaration, kind)
    failure = f"{configured.plugin.owned} cannot say what it has changed"
    if location:
        say = resolve_location(location, failure)
        with author_code(failure):
            yield from say(configured.options, *arguments)


def head_problems(network: MeasuredNetwork, facts: DataFacts) -> Iterator[Problem]:
    """Yield the problem of a head that does not have an output for each class, if targets are classes.

    With several targets a sample, the classes are a dimension before or behind theirs, as the loss reads them. Several outputs are
    what the loss makes of them; those of the first party read one.
    """
    allowed = outputs_for(facts)
    head = network.graph.nodes[network.graph.head]
    measured, target = network.shapes[head.name], facts.target_shape
    outputs, loss = measured.outputs, network.checked.loss.plugin
    if loss.is_first_party and (measured.several or facts.several_targets):
        came = f'the head "{head.name}" returns' if measured.several else "a sample's target is"
        message = f"{came} several tensors, or one in a tuple or a dictionary, and {loss} reads one"
        hint = (
            "write a loss of your own, which is called with what the network returned and with the targets: "
            '[loss] name = "my_losses:MyLoss", or loss={"name": MyLoss} in Python'
        )
        if measured.several:
            hint += "; or write a module around the network whose forward returns one tensor"
        yield Problem(message=message, hint=hint, path=head.path if measured.several else ("loss",))
        return
    if not allowed or measured.several or outputs[0] in allowed:
        return
    shapes = ", ".join("x".join(map(str, shape)) for shape in outputs)
    of_targets = f", and targets of {'x'.join(map(str, target))}" if target else ""
    message = f'the head "{head.name}" has {shapes} outputs, but the data set has {facts.classes} classes{of_targets}'
    hint = "make it " + " or ".join("x".join(map(str, shape)) for shape in allowed)
    yield Problem(message=message, hint=hint, path=head.path)
