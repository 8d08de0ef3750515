"""The check step: a specification checked against everything that is known without torch.

Keys, types, plugins with their options, the architecture written out as nodes, the graph's rules, method, precision,
stages. Shapes are not checked: they need the blocks' code.

Decision: no problem hides another. Each step works with the parts that the steps before it could read, and all
problems are raised together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, cast

import attrs
from attrs import frozen

from petra_graph.compiler.spec_checks import (
    bound_problems,
    check_method,
    check_precision,
    compile_problems,
    device_problems,
)
from petra_graph.errors import USUAL_KEYS, Path, PetraGraphError, Problem, shown
from petra_graph.graph.build_graph import NodeInput, build_graph
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.kinds.architecture import expand
from petra_graph.kinds.block import BLOCK, BlockDeclaration
from petra_graph.kinds.correction import CORRECTION, DELAY, ONCE_OPTIONS, Corrected
from petra_graph.kinds.data_set import DataFacts
from petra_graph.kinds.declared_data import completed_options, declared_facts, declared_samples
from petra_graph.kinds.graph_pass import GRAPH_PASS, GraphPassDeclaration
from petra_graph.kinds.logger import LOGGER, missing_package
from petra_graph.kinds.optimizer import OPTIMIZER
from petra_graph.kinds.plugin import FIRST_PARTY, Plugin, read_options
from petra_graph.kinds.plugin_kind import PluginKind
from petra_graph.planning.check.checked_spec import CheckedSpec, ConfiguredPlugin, given_stages
from petra_graph.planning.problem_collector import ProblemCollector
from petra_graph.program.method import Method
from petra_graph.program.placement import Partition
from petra_graph.record.recorded_run import plugin_packages
from petra_graph.registry.discovery import JOINTS
from petra_graph.registry.first_party import OF_TABLES, how_to_install, or_missing
from petra_graph.registry.joints import not_installed
from petra_graph.registry.local_plugins import code_problem, missing_module
from petra_graph.registry.registry import Registry, discover
from petra_graph.spec.keys import IS_CODE, NODES, keys_with
from petra_graph.spec.load_spec import Given, LoadedSpec, load
from petra_graph.spec.located_paths import located_options
from petra_graph.spec.model import InputSpec, MetricSpec, NodeSpec, PluginSpec, RequestedSchedule
from petra_graph.spec.value_layers import PLUGIN_LISTS, PLUGIN_TABLES, plugin_name
from petra_graph.units import listed


def check_spec(
    given: Given,
    overrides: Iterable[str] = (),
    *,
    registry: Registry | None = None,
    import_local: bool = False,
    folders: Iterable[str] = (),
    facts: DataFacts | None = None,
) -> CheckedSpec:
    """Check a specification.

    Args:
        given: a TOML file, or "-" for the standard input, or a specification made in code.
        overrides: `--set` assignments, KEY=VALUE.
        registry: the plugins; None: those that are installed.
        import_local: import "module:attribute" blocks, which usually imports torch.
        folders: where their modules may be, in addition to the specification's folder and the current one.
        facts: of the data, where a run has stored them; None: the data set's declaration says them.

    Raises:
        SpecError: the specification is wrong; all problems, located, those of plugins among them.
        PluginError: only plugins are at fault.
    """
    registry = registry or discover()
    loaded = load(given, overrides, registry.spec_class)
    problems = ProblemCollector(loaded=loaded, wrong=[or_missing(problem) for problem in loaded.problems])
    folders = dict.fromkeys((*loaded.folders, *folders, *registry.folders))
    check = _Check(
        loaded=loaded,
        registry=attrs.evolve(registry, folders=tuple(folders), made_with=plugin_packages(given)),
        problems=problems,
        import_local=import_local,
        resolved={},
    )
    check.hint_at_misplaced_options()
    plugins = {kind.table: check.plugin_of(kind) for kind in registry.kinds if kind.table and not kind.several}
    lists = {kind.table: check.plugins_of(kind) for kind in registry.kinds if kind.several}
    correction = check.correction()
    if correction is not None and (optimizer := plugins["optimizer"]) is not None:
        code = Corrected(optimizer.plugin, correction.plugin, correction.options, loaded.layers.locate)
        plugins["optimizer"] = attrs.evolve(optimizer, plugin=attrs.evolve(optimizer.plugin, code=code))
    unread: Sequence[Problem] = ()
    if facts is None:
        plugins["data"], unread = check.completed(plugins["data"])
        facts = check.facts(plugins["data"])
    passes = check.passes()
    nodes = check.nodes(plugins["architecture"], facts)
    if not nodes:  # a network that is known without the data is planned without it
        problems.add(unread)
    graph = check.graph(nodes, plugins["architecture"])
    check.input(facts)
    method = check.method()
    check.precision()
    check.devices()
    if loaded.spec is not None:
        problems.add(compile_problems(loaded.spec))
    check.probe()
    stages = check.stages(graph, method, changes=bool(passes))
    problems.raise_any()
    assert loaded.spec is not None
    assert facts is not None
    assert graph is not None
    assert method is not None
    del plugins["architecture"]
    return CheckedSpec(
        spec=loaded.spec,
        graph=graph,
        method=method[0],
        schedule=method[1],
        stages=stages,
        loaded=loaded,
        facts=facts,
        training_samples=check.training_samples(plugins["data"]),
        loggers=lists["logger"] if loaded.spec.logger is not None else check.default_loggers(),
        callbacks=lists["callback"],
        metrics=lists["metric"],
        added={table: found for table, found in lists.items() if table not in PLUGIN_LISTS},
        passes=passes,
        correction=correction,
        unchecked_blocks=tuple(dict.fromkeys(node.spec.block for node in nodes if node.plugin is None)),
        **cast(Mapping[str, ConfiguredPlugin], plugins),
    )


@frozen(kw_only=True)
class _Check:
    """The steps; each adds its problems to `problems` and returns the values that it could read."""

    loaded: LoadedSpec
    registry: Registry
    problems: ProblemCollector
    import_local: bool
    resolved: dict[tuple[str, str], Plugin | None]
    """Plugins by group and name, so that one that many nodes use is reported where it is used first."""

    def probe(self) -> None:
        """Refuse the table of a probe that no installed distribution has."""
        if "probe" in self.loaded.values and all(
            (one.group, one.name) != (JOINTS, "probe") for one in self.registry.entries
        ):
            message, hint = not_installed("probe", "[probe]")
            self.problems.add([Problem(message=message, hint=hint, path=("probe",))])

    def hint_at_misplaced_options(self) -> None:
        """Where an unknown key of a table is an option of the plugin that the table names, add that as a hint."""
        for index, problem in enumerate(self.problems.wrong):
            if not problem.at_key or not isinstance(key := problem.path[-1], str):
                continue
            hints = [self.option_hint(kind, name, key, meant) for kind, name, meant in self.named_around(problem.path)]
            if any(hints):
                self.problems.wrong[index] = attrs.evolve(problem, hint=next(filter(None, hints)))

    def named_around(self, path: Path) -> Iterator[tuple[PluginKind, Any, str]]:
        """Yield the kind and name of plugins, and where their options are: of the table around a key, then of all tables."""
        values = self.loaded.values
        by_table = {kind.table: kind for kind in self.registry.kinds if kind.table}
        match path:
            case (str(table), int(number), str()) if table in by_table and by_table[table].several:
                yield by_table[table], values[table][number].get("name"), "options"
            case ("graph", "node", int(number), str()):
                yield BLOCK, values["graph"]["node"][number].get("block"), "options"
        for table in sorted(PLUGIN_TABLES, key=lambda table: table != path[0]):
            if isinstance(value := values.get(table, {}), Mapping):
                yield by_table[table], plugin_name(table, value), f"{table}.options"

    def option_hint(self, kind: PluginKind, name: Any, key: str, options: str) -> str:
        """Return the hint that a key is an option of a plugin; "" where it is none."""
        if not isinstance(name, str) or self.registry.is_local(name, kind):
            return ""
        try:
            plugin = self.registry.resolve(kind, name)
        except PetraGraphError:  # The step that resolves the plugin reports it.
            return ""
        known = attrs.fields_dict(plugin.declaration.options)
        key = key if key in known else USUAL_KEYS.get(key, "")
        return "" if key not in known else f"did you mean {options}.{key}? {key} is an option of {plugin}"

    def with_owners(self, kind: PluginKind, options: Path, problem: Problem) -> Problem:
        """Name the plugins that have an option which the one at hand does not have; blocks are too many."""
        *table, key = problem.path
        if kind is OPTIMIZER and problem.at_key and key in ONCE_OPTIONS:
            return _as_correction(problem, key, self.loaded.values["optimizer"]["options"][key])
        if kind is BLOCK or not problem.at_key or tuple(table) != options or key in USUAL_KEYS:
            return problem
        owners = [name for name in self.registry.names(kind) if self.option_hint(kind, name, str(key), "options")]
        hint = f"{problem.hint}; {key} is an option of {kind.noun} {listed(owners)}"
        return attrs.evolve(problem, hint=hint) if owners else problem

    def plugin_of(self, kind: PluginKind) -> ConfiguredPlugin | None:
        """Resolve the plugin of a kind's top-level table and read its options."""
        table = kind.table
        part = self.loaded.parts.get((table,))
        if part is None:
            return None
        written = self.loaded.values.get(table)
        by_default = not (isinstance(written, Mapping) and "name" in written)
        name = self.registry.within(kind, part.name, [FIRST_PARTY]) if by_default else part.name
        plugin = self.resolve(kind, name, (table, "name"))
        if plugin is None:
            return None
        path = (table, "options")
        options = self.options(plugin, part.options, path)
        return None if options is None else ConfiguredPlugin(plugin=plugin, options=options, path=path)

    def correction(self) -> ConfiguredPlugin | None:
        """Resolve the correction of late gradients and read its options."""
        table = getattr(self.loaded.parts.get(DELAY[:1]), "delay", None)
        if table is None:
            return None
        if not self.registry.names(CORRECTION):
            dotted = ".".join(map(str, DELAY))
            hint = how_to_install(OF_TABLES[dotted])
            self.problems.add(
                [
                    Problem(
                        message=f"{OF_TABLES[dotted]} is not installed, which reads [{dotted}]", hint=hint, path=DELAY
                    )
                ]
            )
            return None
        plugin = self.resolve(CORRECTION, str(DELAY[-1]), DELAY)
        options = None if plugin is None else self.options(plugin, table, DELAY)
        if plugin is None or options is None:
            return None
        return ConfiguredPlugin(plugin=plugin, options=options, path=DELAY)

    def plugins_of(self, kind: PluginKind) -> tuple[ConfiguredPlugin, ...]:
        """Resolve the plugins of a kind's array of tables, each of which may be there once; a metric once under each name."""
        found: dict[tuple[str, str], ConfiguredPlugin] = {}
        for path, part in self.loaded.parts.items():
            if path[0] != kind.table or not isinstance(part, PluginSpec):
                continue
            plugin = self.resolve(kind, part.name, (*path, "name"))
            if plugin is None:
                continue
            plain = plugin.name.rpartition(":")[2]
            key, label, hint = (plugin.distribution, plain if plugin.distribution else plugin.name), "", ""
            if isinstance(part, MetricSpec):
                label = part.recorded_as or plain
                key, hint = ("", label), f'record it under another name: recorded_as = "{label}-2"'
            if key in found:
                if label and self.loaded.spec is None:  # another name that was given may not be readable
                    continue
                twice = (
                    f"{found[key].plugin} is recorded as {shown(label)}, too" if label else f"{plugin} is listed twice"
                )
                self.problems.add([Problem(message=twice, hint=hint, path=(*path, "name"))])
                continue
            options = self.options(plugin, part.options, (*path, "options"))
            if options is not None:
                found[key] = ConfiguredPlugin(plugin=plugin, options=options, path=(*path, "options"), label=label)
        return tuple(found.values())

    def passes(self) -> tuple[ConfiguredPlugin, ...]:
        """Resolve the graph passes whose tables there are, in their order."""
        found: list[tuple[int, ConfiguredPlugin]] = []
        for table in self.registry.passes:
            plugin = self.resolve(GRAPH_PASS, table, (table,)) if table in self.loaded.values else None
            if plugin is not None and self.loaded.spec is not None:
                options = getattr(self.loaded.spec, table)
                order = cast(GraphPassDeclaration, plugin.declaration).order
                found.append((order, ConfiguredPlugin(plugin=plugin, options=options, path=(table,))))
        return tuple(one for _, one in sorted(found, key=itemgetter(0)))

    def default_loggers(self) -> tuple[ConfiguredPlugin, ...]:
        """Return the loggers of a specification that names none: TensorBoard, where it is installed."""
        try:
            plugin = self.registry.resolve(LOGGER, self.registry.within(LOGGER, "tensorboard", [FIRST_PARTY]))
        except PetraGraphError:
            return ()
        options, _ = read_options(plugin, {}, ())
        return () if missing_package(plugin) else (ConfiguredPlugin(plugin=plugin, options=options, path=("logger",)),)

    def resolve(self, kind: PluginKind, name: str, path: Path) -> Plugin | None:
        key = (kind.group, name)
        if self.resolved.get(key) is None:
            self.resolved[key] = self.problems.at(*path).attempt(self._resolved, kind, name)
        return self.resolved[key]

    def _resolved(self, kind: PluginKind, name: str) -> Plugin:
        """Return the plugin of that name. One whose options name the user's code counts as the user's: it is tried before a run."""
        plugin = self.registry.resolve(kind, name)
        with_code = keys_with(IS_CODE, plugin.declaration.options)
        return attrs.evolve(plugin, distribution="") if with_code else plugin

    def options(self, plugin: Plugin, mapping: Mapping[str, Any], path: Path) -> Any:
        mapping = located_options(plugin.declaration.options, mapping, path, self.loaded.layers)
        options, problems = read_options(plugin, mapping, path)
        self.problems.add(self.with_owners(plugin.kind, path, problem) for problem in problems)
        codes = {key: getattr(options, key, None) for key in keys_with(IS_CODE, plugin.declaration.options)}
        found = {key: code_problem(key, name, self.registry.folders) for key, name in codes.items() if name is not None}
        wrong = [attrs.evolve(problem, path=(*path, key)) for key, problem in found.items() if problem is not None]
        self.problems.add(wrong)
        return None if wrong else options

    def completed(self, data: ConfiguredPlugin | None) -> tuple[ConfiguredPlugin | None, Sequence[Problem]]:
        """Return the data set with what only its files tell, or as it is with the problems of files that cannot be read."""
        if data is None:
            return None, ()
        at, unread = self.problems.at("data", "options"), list[Problem]()
        options = attrs.evolve(at, wrong=unread).attempt(completed_options, data.plugin, data.options)
        return data if options is None else attrs.evolve(data, options=options), unread

    def facts(self, data: ConfiguredPlugin | None) -> DataFacts | None:
        """Return the shape and type of the data set's samples, from its declaration."""
        if data is None:
            return None
        return self.problems.at("data", "options").attempt(declared_facts, data.plugin, data.options)

    def training_samples(self, data: ConfiguredPlugin | None) -> int | None:
        """Return how many training samples there are, where the data set's declaration says it."""
        assert data is not None
        return self.problems.at("data", "options").require(declared_samples, data.plugin, data.options)

    def nodes(self, architecture: ConfiguredPlugin | None, facts: DataFacts | None) -> list[NodeInput]:
        """Check the nodes that the specification lists, or that its architecture makes."""
        if architecture is None:
            listed = {path: part for path, part in self.loaded.parts.items() if isinstance(part, NodeSpec)}
            return [self.node(node, path) for path, node in listed.items()]
        if facts is None:
            return []
        problems = self.problems.at("architecture", "options")
        expanded = problems.attempt(expand, architecture.plugin, architecture.options, facts) or ()
        # The author of the specification did not write these names, and could not add a distribution to them.
        owners = [architecture.plugin.distribution, FIRST_PARTY]
        blocks = [self.registry.within(BLOCK, node.block, owners) for node in expanded]
        nodes = [attrs.evolve(node, block=block) for node, block in zip(expanded, blocks, strict=True)]
        told: set[str] = set()
        return [self.node_of(architecture.plugin, node, told) for node in nodes]

    def node_of(self, architecture: Plugin, node: NodeSpec, told: set[str]) -> NodeInput:
        """Check a node that an architecture makes; what is wrong with several of them is told of the first."""
        found = attrs.evolve(self, problems=attrs.evolve(self.problems, wrong=[], broken=[]))
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
        plugin, options = None, None
        if self.registry.is_local(node.block, BLOCK) and not self.import_local:
            missing = missing_module(node.block, self.registry.folders)
            if missing is not None:
                self.problems.add([attrs.evolve(missing, path=(*path, "block"))])
        else:
            plugin = self.resolve(BLOCK, node.block, (*path, "block"))
            if plugin is not None:
                options = self.options(plugin, node.options, (*path, "options"))
        return NodeInput(spec=node, plugin=plugin, options=options, path=path)

    def graph(self, nodes: list[NodeInput], architecture: ConfiguredPlugin | None) -> NodeGraph | None:
        """Apply the graph's rules, where every node could be read: a missing node would break rules by its absence."""
        given = self.loaded.values.get("graph", {})
        tables = given.get("node", []) if isinstance(given, Mapping) else []
        if not nodes or (isinstance(tables, list) and len(tables) > len(nodes)):
            return None
        if (total := sum(node.spec.repeat for node in nodes)) > NODES:
            largest = max(nodes, key=lambda node: node.spec.repeat)
            message = f"the network has {total:,} nodes; at most {NODES:,} are allowed"
            self.problems.add([Problem(message=message, path=(*largest.path, "repeat"))])
            return None
        head = _likely_head(nodes)
        graph, problems = build_graph([_as_head(node) if node is head else node for node in nodes])
        if architecture is not None and architecture.plugin.distribution != FIRST_PARTY:
            owned = architecture.plugin.owned
            wrong = [attrs.evolve(one, message=f"{owned}, its graph: {one.message}") for one in problems]
            self.problems.add(wrong, of_plugin=True)
        else:
            self.problems.add(problems)
        return graph

    def input(self, facts: DataFacts | None) -> None:
        """Compare the graph's stated input with the data set's samples."""
        stated = self.loaded.parts.get(("graph", "input"))
        if facts is None or not isinstance(stated, InputSpec):
            return
        for key, given, actual in (("shape", stated.shape, facts.shape), ("dtype", stated.dtype, facts.dtype)):
            if given != actual:
                message = f"the graph's input has {key} {shown(given)}, but the data set's samples have {shown(actual)}"
                hint = "leave out [graph] input: the data set says it"
                self.problems.add([Problem(message=message, hint=hint, path=("graph", "input", key))])

    def method(self) -> tuple[Method, RequestedSchedule] | None:
        """Return the method and the schedule, where they go together with each other and with the clipping."""
        method, optimizer = self.loaded.parts.get(("method",)), self.loaded.parts.get(("optimizer",))
        if method is None:
            return None
        if method.max_staleness is not None:
            k = self.loaded.layers.origins.get(path := ("method", "accumulation"))
            self.problems.add(bound_problems(method, None if k is None else k.where(path)))
        return self.problems.attempt(check_method, method, optimizer.clip if optimizer is not None else None)

    def precision(self) -> None:
        """Check that the number formats go together."""
        precision = self.loaded.parts.get(("precision",))
        if precision is not None:
            self.problems.attempt(check_precision, precision)

    def devices(self) -> None:
        """Check the devices' names, types and memory limits, which need not be present."""
        partition = self.loaded.parts.get(("partition",))
        if partition is not None:
            if any(problem.path[:2] == ("partition", "device") for problem in self.loaded.problems):
                partition = attrs.evolve(partition, device_type=None)  # it may name what could not be read
            self.problems.add(device_problems(partition))

    def stages(
        self, graph: NodeGraph | None, method: tuple[Method, RequestedSchedule] | None, *, changes: bool
    ) -> Partition | None:
        """Return the given stages; only a graph without problems can be cut."""
        spec = self.loaded.spec
        if graph is None or spec is None or method is None or self.problems.any:
            return None
        return self.problems.attempt(partial(given_stages, changes=changes), graph, spec, method[1])


def _as_head(node: NodeInput) -> NodeInput:
    return attrs.evolve(node, spec=attrs.evolve(node.spec, kind="head"))


def _as_correction(problem: Problem, key: str, value: Any) -> Problem:
    """Say what to write in place of an option that has become a key of `[optimizer.delay]`."""
    where = "[optimizer.delay], which is for any optimizer"
    if value in (False, "none"):
        return attrs.evolve(problem, hint=f"leave it out: it is a key of {where}")
    in_shell = f"--set optimizer.delay.{key}={str(value).lower()}"
    return attrs.evolve(problem, hint=f"write {key} = {shown(value)} in {where}", set_hint=in_shell)


def _likely_head(nodes: list[NodeInput]) -> NodeInput | None:
    """Return the last node whose block is unknown, where no known node is a head.

    The graph without it would have no head: a second problem, whose only cause is the misspelt name of a block.
    """
    kinds = [node.spec.kind or (node.plugin and cast(BlockDeclaration, node.plugin.declaration).kind) for node in nodes]
    if "head" in kinds or None not in kinds:
        return None
    return nodes[len(kinds) - 1 - kinds[::-1].index(None)]
