"""The measure step: the shapes of all nodes, and what these rule out.

Neither the data set's files nor the devices are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve

from petra_graph.compiler.spec_checks import keep_problems
from petra_graph.errors import Problem, SpecError
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.measure.node_shapes import NodeShapes, measure_shapes, outputs_for, read_by_network
from petra_graph.planning.check.checked_spec import CheckedSpec
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.plugins.data_set import DataFacts
from petra_graph.record.weights import SEPARATOR, is_named
from petra_graph.units import listed

_LISTED = 8


def measure(checked: CheckedSpec) -> MeasuredNetwork:
    """Measure the shapes of every node.

    Raises:
        SpecError: a block refuses its input, or a node cannot keep what is listed for it.
        PluginError: code cannot be imported, or has failed.
    """
    graph = _with_frozen(checked.graph, checked.spec.init.freeze)
    shapes = measure_shapes(graph, *read_by_network(checked.facts))
    network = MeasuredNetwork(
        checked=checked,
        graph=graph,
        shapes=shapes,
        training_samples=checked.training_samples,
    )
    if problems := list(network_problems(network)):
        raise SpecError(problems)
    return network


def _with_frozen(graph: NodeGraph, patterns: tuple[str, ...]) -> NodeGraph:
    nodes = {name: evolve(node, frozen=patterns) for name, node in graph.nodes.items()}
    return NodeGraph(nodes=nodes) if patterns else graph


def freeze_problems(shapes: Mapping[str, NodeShapes], patterns: Sequence[str]) -> Iterator[Problem]:
    """Yield patterns of `init.freeze` that name nothing, parameters that are frozen in one of their nodes alone, or that nothing is trained."""
    names = [f"{node}{SEPARATOR}{key}" for node, one in shapes.items() for key in (*one.frozen, *one.trained)]
    path = ("init", "freeze")
    for pattern in patterns:
        if not any(is_named([pattern], name) for name in names):
            hint = f"name nodes or parameters: {listed(names, _LISTED)}"
            yield Problem(message=f"{pattern!r} names no parameter of the network", hint=hint, path=path)
    trained: dict[str, set[bool]] = {}
    for one in shapes.values() if patterns else ():
        for shared in one.shared.values():
            trained.setdefault(shared.label, set()).add(shared.trained)
    for label, found in trained.items():
        if len(found) > 1:
            yield Problem(message=f"{label} is one parameter of several nodes: freeze it in all of them", path=path)
    if patterns and not any(one.trained for one in shapes.values()):
        yield Problem(message="nothing of the network would be trained", hint="freeze less", path=path)


def network_problems(network: MeasuredNetwork) -> Iterator[Problem]:
    """Yield what shapes show to be wrong: what nodes keep, what cannot be frozen."""
    yield from keep_problems(network.spec.method, network.graph)
    yield from freeze_problems(network.shapes, network.spec.init.freeze)


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
