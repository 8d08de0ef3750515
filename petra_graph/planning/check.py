"""A specification checked against everything that can be known without torch.

Keys and types, plugins and their options, the architecture written out as nodes, the graph's rules, method, schedule
and stages. Shapes are not checked: they need the blocks' code.

Decision: one problem does not hide another. Each step goes on with what the steps before it could read, and all that
was found is raised together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import attrs
from attrs import frozen

from petra_graph.compiler.method_check import method_and_schedule
from petra_graph.compiler.partition import partition
from petra_graph.compiler.precision import check_precision
from petra_graph.errors import Path, PetraGraphError, Problem, shown
from petra_graph.graph.build import NodeInput, build_graph
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.planning.problem_collector import ProblemCollector
from petra_graph.registry.building import expand
from petra_graph.registry.contracts import BLOCKS, BlockDeclaration, DataFacts, DataSetDeclaration
from petra_graph.registry.local import missing_module
from petra_graph.registry.options import read_options
from petra_graph.registry.registry import TABLE_GROUPS, Plugin, Registry, discover
from petra_graph.registry.trust import guarded
from petra_graph.spec.load import LoadedSpec, load
from petra_graph.spec.merge import PLUGIN_TABLES, plugin_name
from petra_graph.spec.model import InputSpec, NodeSpec, Spec


@frozen(kw_only=True)
class Chosen:
    """A plugin that the specification names, with its options read."""

    plugin: Plugin
    options: Any


@frozen(kw_only=True)
class CheckedNode:
    """A node's table, with its block resolved and its options read."""

    spec: NodeSpec
    plugin: Plugin | None
    """None for a "module:Class" that was not imported."""
    options: Any
    path: Path
    """Where the specification says so; the whole `architecture` for the nodes that it made."""


@frozen(kw_only=True)
class Checked:
    """A specification in which nothing was found wrong."""

    spec: Spec
    loaded: LoadedSpec
    architecture: Chosen | None
    """None where the specification lists its nodes."""
    loss: Chosen
    optimizer: Chosen
    lr_schedule: Chosen
    data: Chosen
    facts: DataFacts
    nodes: tuple[CheckedNode, ...]
    graph: NodeGraph

    @property
    def unchecked_blocks(self) -> tuple[str, ...]:
        """The "module:Class" blocks that were not imported, and so not checked."""
        return tuple(dict.fromkeys(node.spec.block for node in self.nodes if node.plugin is None))


def check_spec(
    path: str,
    overrides: Iterable[str] = (),
    *,
    registry: Registry | None = None,
    import_local: bool = False,
) -> Checked:
    """Check a specification.

    Args:
        path: a TOML file, or "-" for the standard input.
        overrides: `--set` assignments, KEY=VALUE.
        registry: the plugins; None: those that are installed.
        import_local: import "module:Class" blocks, which usually imports torch.

    Raises:
        SpecError: the specification is wrong; all problems, located, those of plugins among them.
        PluginError: only plugins are at fault.
    """
    loaded = load(path, overrides)
    findings = ProblemCollector(wrong=list(loaded.problems))
    check = _Check(
        loaded=loaded, registry=registry or discover(), findings=findings, import_local=import_local, resolved={}
    )
    check.misplaced_options()
    chosen = {table: check.choose(table) for table in PLUGIN_TABLES}
    facts = check.facts(chosen["data"])
    nodes = check.nodes(chosen["architecture"], facts)
    graph = check.graph(nodes)
    check.input(facts)
    check.method()
    check.precision()
    check.stages(graph)
    findings.raise_any(loaded)
    assert loaded.spec is not None
    assert facts is not None
    assert graph is not None
    named = cast(Mapping[str, Chosen], {table: choice for table, choice in chosen.items() if table != "architecture"})
    return Checked(
        spec=loaded.spec,
        loaded=loaded,
        architecture=chosen["architecture"],
        facts=facts,
        nodes=tuple(nodes),
        graph=graph,
        **named,
    )


@frozen(kw_only=True)
class _Check:
    """The steps; each adds what it finds to `findings` and returns what it could read."""

    loaded: LoadedSpec
    registry: Registry
    findings: ProblemCollector
    import_local: bool
    resolved: dict[tuple[str, str], Plugin | None]
    """Plugins by group and name, so that one that many nodes use is reported where it is used first."""

    def misplaced_options(self) -> None:
        """Where an unknown key of a table is an option of the plugin that the table names, say so."""
        for index, problem in enumerate(self.findings.wrong):
            if not problem.at_key:
                continue
            match problem.path:
                case (str(table), str(key)) if table in PLUGIN_TABLES:
                    group, name = TABLE_GROUPS[table], plugin_name(table, self.loaded.values[table])
                    meant = f"{table}.options.{key}"
                case ("graph", "node", int(number), str(key)):
                    group, name = BLOCKS, self.loaded.values["graph"]["node"][number].get("block")
                    meant = f"options.{key}"
                case _:
                    continue
            if not isinstance(name, str) or (group == BLOCKS and self.registry.is_local(name)):
                continue
            try:
                plugin = self.registry.resolve(group, name)
            except PetraGraphError:  # It is told where the plugin is chosen.
                continue
            if key in attrs.fields_dict(plugin.declaration.options):
                hint = f"did you mean {meant}? {key} is an option of {plugin}"
                self.findings.wrong[index] = attrs.evolve(problem, hint=hint)

    def choose(self, table: str) -> Chosen | None:
        """Resolve a top-level table's plugin and read its options."""
        part = self.loaded.parts.get((table,))
        if part is None:
            return None
        plugin = self.resolve(TABLE_GROUPS[table], part.name, (table, "name"))
        if plugin is None:
            return None
        options = self.options(plugin, part.options, (table, "options"))
        return None if options is None else Chosen(plugin=plugin, options=options)

    def resolve(self, group: str, name: str, path: Path) -> Plugin | None:
        """Resolve a plugin."""
        key = (group, name)
        if self.resolved.get(key) is None:
            self.resolved[key] = self.findings.attempt(lambda: self.registry.resolve(group, name), path)
        return self.resolved[key]

    def options(self, plugin: Plugin, mapping: Mapping[str, Any], path: Path) -> Any:
        options, problems = read_options(plugin, mapping, path)
        self.findings.add(problems)
        return options

    def facts(self, data: Chosen | None) -> DataFacts | None:
        """Ask the data set's declaration what its samples look like."""
        if data is None:
            return None
        declaration = cast(DataSetDeclaration, data.plugin.declaration)
        return self.findings.attempt(
            lambda: guarded(lambda: declaration.facts(data.options), f"{data.plugin} cannot say what its samples are"),
            ("data", "options"),
            inside=True,
        )

    def nodes(self, architecture: Chosen | None, facts: DataFacts | None) -> list[CheckedNode]:
        """Check the nodes that the specification lists, or that its architecture makes."""
        if architecture is None:
            listed = {path: part for path, part in self.loaded.parts.items() if isinstance(part, NodeSpec)}
            return [self.node(node, path) for path, node in listed.items()]
        if facts is None:
            return []
        expanded = self.findings.attempt(
            lambda: expand(architecture.plugin, architecture.options, facts), ("architecture", "options"), inside=True
        )
        return [self.node(node, ("architecture",)) for node in expanded or ()]

    def node(self, node: NodeSpec, path: Path) -> CheckedNode:
        local = self.registry.is_local(node.block)
        plugin, options = None, None
        if local and not self.import_local:
            missing = missing_module(node.block)
            if missing is not None:
                self.findings.add([attrs.evolve(missing, path=(*path, "block"))])
        else:
            plugin = self.resolve(BLOCKS, node.block, (*path, "block"))
            if plugin is not None:
                options = self.options(plugin, node.options, (*path, "options"))
        return CheckedNode(spec=node, plugin=plugin, options=options, path=path)

    def graph(self, nodes: list[CheckedNode]) -> NodeGraph | None:
        """Apply the graph's rules, where every node could be read: a missing one would break rules by its absence."""
        given = self.loaded.values.get("graph", {})
        tables = given.get("node", []) if isinstance(given, Mapping) else []
        if not nodes or (isinstance(tables, list) and len(tables) > len(nodes)):
            return None
        head = _likely_head(nodes)
        graph, problems = build_graph(
            [
                NodeInput(
                    spec=attrs.evolve(node.spec, kind="head") if node is head else node.spec,
                    plugin=node.plugin,
                    options=node.options,
                    path=node.path,
                )
                for node in nodes
            ]
        )
        self.findings.add(problems)
        return graph

    def input(self, facts: DataFacts | None) -> None:
        """Compare the graph's stated input with the data set's samples."""
        stated = self.loaded.parts.get(("graph", "input"))
        if facts is None or not isinstance(stated, InputSpec):
            return
        for key, said, is_so in (("shape", stated.shape, facts.shape), ("dtype", stated.dtype, facts.dtype)):
            if said != is_so:
                self.findings.add(
                    [
                        Problem(
                            message=f"the graph's input has {key} {shown(said)}, but the data set's samples have {shown(is_so)}",
                            hint="leave out [graph] input: the data set says it",
                            path=("graph", "input", key),
                        )
                    ]
                )

    def method(self) -> None:
        """Look up the method, and whether it runs under the schedule and with the clipping that are asked for."""
        method = self.loaded.parts.get(("method",))
        optimizer = self.loaded.parts.get(("optimizer",))
        if method is not None:
            clip = optimizer.clip if optimizer is not None else None
            self.findings.attempt(lambda: method_and_schedule(method, clip), (), inside=True)

    def precision(self) -> None:
        """Check that the number formats go together."""
        precision = self.loaded.parts.get(("precision",))
        if precision is not None:
            self.findings.attempt(lambda: check_precision(precision), (), inside=True)

    def stages(self, graph: NodeGraph | None) -> None:
        """Cut the graph where the specification says so by hand; only a graph without fault can be cut."""
        spec = self.loaded.spec
        if graph is None or spec is None or self.findings.wrong:
            return
        cuts = spec.partition.stages
        if cuts == "per-block" or isinstance(cuts, int):
            return
        self.findings.attempt(lambda: partition(graph, cuts, ("cpu",)), (), inside=True)


def _likely_head(nodes: list[CheckedNode]) -> CheckedNode | None:
    """Return the node that must be taken for the head: the last whose block is not known, where no known one is.

    The graph without it would lack a head, which nobody could mend who has only misspelt a block's name.
    """
    kinds = [node.spec.kind or (node.plugin and cast(BlockDeclaration, node.plugin.declaration).kind) for node in nodes]
    if "head" in kinds or None not in kinds:
        return None
    return nodes[len(kinds) - 1 - kinds[::-1].index(None)]
