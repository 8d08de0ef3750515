"""The check step: everything that a specification says, before the network is built.

Keys, types, plugins with their options, the architecture written out as nodes, the graph's rules, method, precision, stages. What
shapes show is the next step's, which builds the network (`planning.network.measure`).

Decision: no problem hides another. Each step works with the parts that the steps before it could read, and all
problems are raised together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import attrs
from attrs import frozen

from petra_graph.compiler.spec_checks import (
    check_method,
    device_problems,
)
from petra_graph.errors import Path, Problem, shown
from petra_graph.graph.build_graph import NodeInput, build_graph
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.planning.check.checked_spec import CheckedSpec, ConfiguredPlugin, given_stages
from petra_graph.planning.check.named_plugins import NamedPlugins
from petra_graph.planning.problem_collector import ProblemCollector
from petra_graph.plugins.contract import FIRST_PARTY, Plugin
from petra_graph.plugins.data_set import DataFacts, completed_options, count_of_share, declared_facts, declared_samples
from petra_graph.plugins.kinds import BLOCK, expand
from petra_graph.plugins.registry import Registry, discover
from petra_graph.program.method import Method
from petra_graph.program.placement import Partition
from petra_graph.record.run_directory import plugin_packages
from petra_graph.spec.keys import NODES
from petra_graph.spec.load_spec import Given, LoadedSpec, load
from petra_graph.spec.model import InputSpec, NodeSpec, RequestedSchedule


def check_spec(
    given: Given,
    overrides: Iterable[str] = (),
    *,
    registry: Registry | None = None,
    folders: Iterable[str] = (),
    facts: DataFacts | None = None,
) -> CheckedSpec:
    """Check a specification.

    Args:
        given: a TOML file, or "-" for the standard input, or a specification made in code.
        overrides: `--set` assignments, KEY=VALUE.
        registry: the plugins; None: those that are installed.
        folders: where their modules may be, in addition to the specification's folder and the current one.
        facts: of the data, where a run has stored them; None: the data set's declaration says them.

    Raises:
        SpecError: the specification is wrong; all problems, located, those of plugins among them.
        PluginError: only plugins are at fault.
    """
    registry = registry or discover()
    loaded = load(given, overrides)
    problems = ProblemCollector(loaded=loaded, wrong=[*loaded.problems])
    folders = dict.fromkeys((*loaded.folders, *folders, *registry.folders))
    registry = attrs.evolve(registry, folders=tuple(folders), made_with=plugin_packages(given))
    named = NamedPlugins(loaded=loaded, registry=registry, problems=problems)
    check = _Check(loaded=loaded, named=named, problems=problems)
    plugins = {kind.table: named.of_table(kind) for kind in registry.kinds if kind.table and not kind.several}
    lists = {kind.table: named.of_list(kind) for kind in registry.kinds if kind.several}
    unread: Sequence[Problem] = ()
    if facts is None:
        plugins["data"], facts, unread = check.data(plugins["data"])
    nodes = check.nodes(plugins["architecture"], facts, unread)
    graph = check.graph(nodes, plugins["architecture"])
    method = check.method()
    check.tables(facts)
    stages = check.stages(graph, method)
    samples = check.training_samples(plugins["data"])
    if loaded.spec is None or facts is None or graph is None or method is None:
        problems.fail()
    problems.raise_any()
    return CheckedSpec(
        spec=loaded.spec,
        graph=graph,
        method=method[0],
        schedule=method[1],
        stages=stages,
        loaded=loaded,
        facts=facts,
        training_samples=samples,
        loggers=lists["logger"] if loaded.spec.logger is not None else named.default_loggers(),
        callbacks=lists["callback"],
        metrics=lists["metric"],
        **cast(Mapping[str, ConfiguredPlugin], plugins),
    )


@frozen(kw_only=True)
class _Check:
    """The steps; each adds its problems to `problems` and returns the values that it could read."""

    loaded: LoadedSpec
    named: NamedPlugins
    problems: ProblemCollector

    def data(
        self, data: ConfiguredPlugin | None
    ) -> tuple[ConfiguredPlugin | None, DataFacts | None, Sequence[Problem]]:
        """Return the data set with what only its files tell, its facts, and the problems of files that cannot be read."""
        if data is None:
            return None, None, ()
        at, unread = self.problems.at("data", "options"), list[Problem]()
        options = attrs.evolve(at, wrong=unread).attempt(completed_options, data.plugin, data.options)
        data = data if options is None else attrs.evolve(data, options=options)
        return data, at.attempt(declared_facts, data.plugin, data.options), unread

    def training_samples(self, data: ConfiguredPlugin | None) -> int | None:
        """Return how many training samples there are without a validation share, if the data set's declaration says it."""
        if data is None or self.loaded.spec is None or self.problems.any:
            return None
        found = self.problems.at("data", "options").attempt(declared_samples, data.plugin, data.options)
        share = self.loaded.spec.data.validation
        return found if found is None or not isinstance(share, float) else found - count_of_share(found, share)

    def nodes(
        self, architecture: ConfiguredPlugin | None, facts: DataFacts | None, unread: Sequence[Problem]
    ) -> list[NodeInput]:
        """Check the nodes that the specification lists, or that its architecture makes.

        A network that is known without the data is planned without it; otherwise the problems of its files are told.
        """
        if architecture is None:
            listed = {path: part for path, part in self.loaded.parts.items() if isinstance(part, NodeSpec)}
            return [self.node(node, path) for path, node in listed.items()]
        at = self.problems.at("architecture", "options")
        if unread:
            at = attrs.evolve(at, wrong=[])
        expanded = None if facts is None else at.attempt(expand, architecture.plugin, architecture.options, facts)
        if expanded is None:
            self.problems.add(unread)
            return []
        # The author of the specification did not write these names, and could not add a distribution to them.
        owners = [architecture.plugin.distribution, FIRST_PARTY]
        blocks = [self.named.registry.within(BLOCK, node.block, owners) for node in expanded]
        nodes = [attrs.evolve(node, block=block) for node, block in zip(expanded, blocks, strict=True)]
        told: set[str] = set()
        return [self.node_of(architecture.plugin, node, told) for node in nodes]

    def node_of(self, architecture: Plugin, node: NodeSpec, told: set[str]) -> NodeInput:
        """Check a node that an architecture makes; what is wrong with several of them is told of the first."""
        apart = attrs.evolve(self.problems, wrong=[], broken=[])
        found = attrs.evolve(self, named=attrs.evolve(self.named, problems=apart), problems=apart)
        made = found.node(node, ("architecture",))
        for problems, known in (
            (found.problems.wrong, self.problems.wrong),
            (found.problems.broken, self.problems.broken),
        ):
            new = [one for one in problems if one.message not in told]
            told.update(one.message for one in new)
            of_node = f"{architecture.owned}, node {shown(node.name)}: "
            known.extend(attrs.evolve(one, message=of_node + one.message) for one in new)
        return made

    def node(self, node: NodeSpec, path: Path) -> NodeInput:
        plugin = self.named.resolve(BLOCK, node.block, (*path, "block"))
        options = None if plugin is None else self.named.options(plugin, node.options, (*path, "options"))
        return NodeInput(spec=node, plugin=plugin, options=options, path=path)

    def graph(self, nodes: list[NodeInput], architecture: ConfiguredPlugin | None) -> NodeGraph | None:
        """Apply the graph's rules, where every node could be read: a missing node would break rules by its absence."""
        given = self.loaded.layers.values.get("graph", {})
        tables = given.get("node", []) if isinstance(given, Mapping) else []
        if not nodes or (isinstance(tables, list) and len(tables) > len(nodes)):
            return None
        if (total := sum(node.spec.repeat for node in nodes)) > NODES:
            largest = max(nodes, key=lambda node: node.spec.repeat)
            message = f"the network has {total:,} nodes; at most {NODES:,} are allowed"
            self.problems.add([Problem(message=message, path=(*largest.path, "repeat"))])
            return None
        head = _likely_head(nodes)
        graph, problems = build_graph(
            [attrs.evolve(node, spec=attrs.evolve(node.spec, kind="head")) if node is head else node for node in nodes]
        )
        if architecture is not None and architecture.plugin.distribution != FIRST_PARTY:
            owned = architecture.plugin.owned
            wrong = [attrs.evolve(one, message=f"{owned}, its graph: {one.message}") for one in problems]
            self.problems.add(wrong, of_plugin=True)
        else:
            self.problems.add(problems)
        return graph

    def method(self) -> tuple[Method, RequestedSchedule] | None:
        """Return the method and the schedule, if they go together with each other and with the clipping."""
        method, optimizer = self.loaded.parts.get(("method",)), self.loaded.parts.get(("optimizer",))
        if method is None:
            return None
        return self.problems.attempt(check_method, method, optimizer.clip if optimizer is not None else None)

    def tables(self, facts: DataFacts | None) -> None:
        """Check the graph's stated input, the precision, the devices, which need not be present, and what is compiled."""
        parts, problems = self.loaded.parts, self.problems
        stated = parts.get(("graph", "input"))
        if facts is not None and isinstance(stated, InputSpec):
            for key, given, actual in (("shape", stated.shape, facts.shape), ("dtype", stated.dtype, facts.dtype)):
                if given != actual:
                    message = (
                        f"the graph's input has {key} {shown(given)}, but the data set's samples have {shown(actual)}"
                    )
                    hint = "leave out [graph] input: the data set says it"
                    problems.add([Problem(message=message, hint=hint, path=("graph", "input", key))])
        if (partition := parts.get(("partition",))) is not None:
            if any(problem.path[:2] == ("partition", "device") for problem in self.loaded.problems):
                partition = attrs.evolve(partition, device_type=None)  # it may name what could not be read
            problems.add(device_problems(partition))

    def stages(self, graph: NodeGraph | None, method: tuple[Method, RequestedSchedule] | None) -> Partition | None:
        """Return the given stages; only a graph without problems can be cut."""
        spec = self.loaded.spec
        if graph is None or spec is None or method is None or self.problems.any:
            return None
        return self.problems.attempt(given_stages, graph, spec, method[1])


def _likely_head(nodes: list[NodeInput]) -> NodeInput | None:
    """Return the last node whose block is unknown, where no known node is a head.

    The graph without it would have no head: a second problem, whose only cause is the misspelt name of a block.
    """
    kinds = [node.spec.kind or (node.plugin and node.plugin.code.kind) for node in nodes]
    if "head" in kinds or None not in kinds:
        return None
    return nodes[len(kinds) - 1 - kinds[::-1].index(None)]
