"""An architecture writes out a network that keeps the graph's rules, for the samples that it is given, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import tomli_w
from attrs import field, frozen

from petra_graph.errors import PetraGraphError, PluginError, Problem, SpecError
from petra_graph.graph.build_graph import NodeInput, build_graph
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.kinds.architecture import ARCHITECTURE, expand
from petra_graph.kinds.block import BLOCK
from petra_graph.kinds.data_facts import DataFacts
from petra_graph.kinds.plugin import FIRST_PARTY, Plugin, load, read_options
from petra_graph.kinds.plugin_kind import PluginKind
from petra_graph.measure.build_block import listing
from petra_graph.measure.node_shapes import NodeShapes, measure_shapes, outputs_for, read_by_network
from petra_graph.registry.registry import Registry, discover
from petra_graph.spec.model import NodeSpec
from petra_graph.spec.value_types import as_mapping
from petra_graph_conformance.broken_promise import BrokenPromise
from petra_graph_conformance.declaration_promises import DECLARATION, NO_TORCH, PACKAGE
from petra_graph_conformance.plugin_trial import PluginTrial
from petra_graph_conformance.promise import KindChecks, Promise

IMAGES = DataFacts(shape=(3, 32, 32), classes=10)
_OTHERS = (
    DataFacts(shape=(1, 8, 8), classes=3),
    DataFacts(shape=(3, 224, 224), classes=1000),
    DataFacts(shape=(16,), dtype="float32", classes=2),
    DataFacts(shape=(16,), dtype="int64"),
)
"""Samples that an architecture may refuse by SpecError, and by nothing else."""


@frozen(kw_only=True)
class ArchitectureTrial(PluginTrial):
    """An architecture with options, and the samples that its network reads.

    Attributes:
        plugin: the architecture.
        options: an instance of its own options class.
        facts: of the samples.
        registry: where its blocks are found.
    """

    facts: DataFacts = IMAGES
    registry: Registry = field(factory=discover, repr=False)

    @staticmethod
    def of_kind() -> PluginKind:
        return ARCHITECTURE

    @property
    def about(self) -> str:
        """Its options and samples, in words."""
        facts = self.facts
        targets = f", targets {listing([facts.target_shape])}" if facts.target_shape else ""
        return f"samples {_shapes(facts)}{targets}; {self.options}"

    def nodes(self, facts: DataFacts | None = None) -> tuple[NodeSpec, ...]:
        """Return the nodes, as a specification gets them."""
        return expand(self.plugin, self.options, self.facts if facts is None else facts)

    def graph(self) -> NodeGraph:
        """Return the graph of the nodes.

        Raises:
            SpecError: a block does not exist, refuses its options, or the nodes break a rule of graphs.
        """
        problems: list[Problem] = []
        inputs = []
        for spec in self.nodes():
            node = attrs.evolve(spec, block=self.registry.within(BLOCK, spec.block, self._owners))
            plugin = self.registry.resolve(BLOCK, node.block)
            options, wrong = read_options(plugin, node.options, (node.name, "options"))
            problems += wrong
            inputs.append(NodeInput(spec=node, plugin=plugin, options=options, path=(node.name,)))
        graph, broken = build_graph(inputs)
        if problems or broken or graph is None:
            raise SpecError([*problems, *broken])
        return graph

    @property
    def _owners(self) -> list[str]:
        return [*filter(None, [self.plugin.distribution]), FIRST_PARTY]

    def attempt(self) -> None:
        self.nodes()
        try:
            self.shapes()
        except SpecError as error:  # it has taken the samples
            raise PluginError(error.problems) from error

    def shapes(self) -> Mapping[str, NodeShapes]:
        """Return the shapes of all nodes."""
        return measure_shapes(self.graph(), *read_by_network(self.facts))


def _shapes(facts: DataFacts) -> str:
    return listing([shape for shape, _ in facts.inputs.values()])


def check_nodes(trial: ArchitectureTrial) -> None:
    """`build` returns NodeSpec values, the same each time, whose options a TOML file can hold."""
    load(trial.plugin)
    first, again = trial.nodes(), trial.nodes()
    if first != again:
        raise BrokenPromise("nodes", "it returns other nodes each time", "make them of the options and the facts alone")
    for node in first:
        try:
            tomli_w.dumps(as_mapping(node.options))
        except TypeError as error:
            found = f"options of node {node.name!r} cannot be written to a resolved specification: {error}"
            raise BrokenPromise("nodes", found, "give numbers, texts, booleans, lists and tables") from error


def check_graph(trial: ArchitectureTrial) -> None:
    """Its blocks are there, take their options, and the nodes keep the graph's rules: one head, no cycle, kinds that fit."""
    _refused("graph", trial.graph)


def check_network(trial: ArchitectureTrial) -> None:
    """Each block can read what the nodes before it return, and the head returns one value for each class."""
    shapes = _refused("network", trial.shapes)
    *_, head = shapes.values()
    allowed = outputs_for(trial.facts)
    if allowed and not head.several and head.outputs[0] not in allowed:
        found = f"its head returns {listing(head.outputs)} for a sample, of {trial.facts.classes} classes"
        raise BrokenPromise("network", found, f"make it {' or '.join(listing([shape]) for shape in allowed)}")


def check_other_samples(trial: ArchitectureTrial) -> None:
    """Samples that it cannot read are refused by SpecError, with a hint, and not by another error."""
    for facts in _OTHERS:
        try:
            trial.nodes(facts)
        except SpecError as error:
            if not all(problem.hint for problem in error.problems):
                found = f"samples {_shapes(facts)} are refused without a hint"
                raise BrokenPromise("other samples", found, "give SpecError a hint that says what to change") from error


def _refused(promise: str, step: Any) -> Any:
    """Return the value of a step, whose refusal breaks a promise."""
    try:
        return step()
    except PetraGraphError as error:
        found = "; ".join(problem.message for problem in error.problems)
        hint = error.problems[0].hint or "mend the nodes that the architecture returns"
        raise BrokenPromise(promise, found, hint) from error


_LIKELY = (
    IMAGES,
    *(DataFacts(shape=(16,), dtype=dtype, classes=10) for dtype in ("float32", "int64")),
    DataFacts(shape=(3, 32, 48), classes=10),
    DataFacts(shape=(16,), dtype="int64", classes=10, target_shape=(16,)),
    DataFacts(shape=(3, 32, 32), classes=10, target_shape=(32, 32)),
    DataFacts(shape=(3, 32, 48), classes=10, target_shape=(32, 48)),
    DataFacts(shape=(16,), dtype="float32", target_dtype="float32"),
    DataFacts(shape=(3, 32, 32), target_dtype="float32"),
    DataFacts(shape=(4, 37), dtype="float32", classes=10),
    DataFacts(shape=(1, 28, 28), classes=10),
)
"""Images, rows, tokens; a class for each token or pixel; values; sequences."""


def likely_architectures(plugin: Plugin, options: Any, given: Mapping[str, Any]) -> Sequence[ArchitectureTrial]:
    """Return trials with these facts, or with likely ones where none are given."""
    facts = [given["facts"]] if "facts" in given else _LIKELY
    return [ArchitectureTrial.of(plugin, options, facts=one) for one in facts]


ARCHITECTURE_CHECKS = KindChecks(
    kind=ARCHITECTURE,
    promises=(
        DECLARATION,
        PACKAGE,
        Promise("nodes", check_nodes, foundation=True),
        Promise("graph", check_graph, foundation=True, run=False),
        Promise("network", check_network, run=False),
        Promise("other samples", check_other_samples, run=False),
        NO_TORCH,
    ),
    trial=ArchitectureTrial,
    trials=likely_architectures,
    settings={"facts": "'shape=[3,48,64]'"},
)
