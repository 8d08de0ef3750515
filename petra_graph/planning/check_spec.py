"""The check step: everything that a specification says, before the network is built.

Keys, types, plugins with their options, the architecture written out as nodes, the graph's rules, method, precision, stages. What
shapes show is the next step's, which builds the network (`planning.network.measure`).

Decision: no problem hides another. Each step works with the parts that the steps before it could read, and all
problems are raised together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any, cast

import attrs
from attrs import field, frozen

from petra_graph.compiler.lower import partition, per_block
from petra_graph.compiler.spec_checks import (
    check_depths,
    check_method,
    device_problems,
    keep_problems,
    old_graph_problems,
    refuse,
)
from petra_graph.errors import Path, Problem, SpecError
from petra_graph.graph.node_graph import NodeGraph, NodeInput, build_graph
from petra_graph.planning.problem_collector import ProblemCollector
from petra_graph.plugins.contract import Plugin, PluginKind, names_code
from petra_graph.plugins.data_set import DataFacts, completed, count_of_share, declared_facts, declared_samples
from petra_graph.plugins.kinds import BLOCK, KINDS, head_of
from petra_graph.plugins.loss_and_metric import Loss, Scale, scale_in
from petra_graph.plugins.registry import Registry, discover
from petra_graph.plugins.stage_facts import DELAYED
from petra_graph.program.method import Method
from petra_graph.program.stage_program import Partition
from petra_graph.spec.load_spec import Given, LoadedSpec, load
from petra_graph.spec.model import MetricSpec, NodeSpec, PluginSpec, RequestedSchedule, Spec
from petra_graph.spec.strict_values import keys_with
from petra_graph.units import plural


@frozen(kw_only=True)
class CheckedSpec:
    """A specification without problems: its network with its method, its stages and its plugins."""

    spec: Spec
    graph: NodeGraph
    method: Method
    schedule: RequestedSchedule
    stages: Partition | None
    """As listed, or one for each node, not yet on devices. None: the specification gives a number, to cut by cost."""
    loaded: LoadedSpec
    loss: Plugin
    optimizer: Plugin
    lr_schedule: Plugin
    data: Plugin
    facts: DataFacts
    training_samples: int | None
    """None where the data set's declaration cannot say how many there are."""
    callbacks: tuple[Plugin, ...]
    """In the order in which they are called."""
    metrics: tuple[Plugin, ...]
    """Of the evaluations, each with a label of its own."""
    architecture: Plugin | None = None
    """What has written out the graph; None where the specification lists its nodes."""

    def variant(self, spec: Spec, graph: NodeGraph | None = None) -> CheckedSpec:
        """Return the same network under another specification.

        Args:
            graph: as it was measured, where that is known.

        Raises:
            SpecError: the other specification's method or stages are wrong.
        """
        method, schedule = check_method(spec.method, spec.optimizer.clip)
        refuse(old_graph_problems(spec, method))
        stages = given_stages(graph or self.graph, spec, schedule)
        return attrs.evolve(self, spec=spec, method=method, schedule=schedule, stages=stages)

    def build_loss(self) -> Loss:
        """Return the loss of training and evaluations; errors as of `Plugin.build`."""
        loss: Loss = self.loss.build()
        return loss

    @cached_property
    def tried_optimizer(self) -> Any:
        """The optimizer of one parameter, in a stage whose gradients are late; errors as of `Plugin.build`."""
        import torch

        from petra_graph.blocks.block_kinds import ParameterGroups

        groups = ParameterGroups(decayed=[torch.nn.Parameter(torch.zeros(1))], undecayed=[])
        return self.optimizer.build(groups, stage=DELAYED)

    @property
    def scales(self) -> dict[str, Scale]:
        """How the values of the metrics are read, by their labels."""
        return {one.recorded_as: scale_in(one) for one in self.metrics}

    @property
    def plugins(self) -> list[Plugin]:
        """All plugins that the specification uses, blocks among them."""
        tables = (self.loss, self.optimizer, self.lr_schedule, self.data, *self.callbacks, *self.metrics)
        blocks = [node.plugin for node in self.graph.nodes.values() if node.plugin is not None]
        return [*tables, *blocks]


def given_stages(graph: NodeGraph, spec: Spec, schedule: RequestedSchedule) -> Partition | None:
    """Return the stages that the specification lists, or one for each node; None where it gives a number of stages.

    Raises:
        SpecError: the listed stages do not fit the network, or the listed depths do not fit the stages, or nodes cannot keep what is
            listed for them.
    """
    refuse(keep_problems(spec.method, graph))
    stages = spec.partition.stages
    if stages == "auto":
        stages = len(schedule) if isinstance(schedule, tuple) else 1
    if isinstance(stages, int):
        if stages > (nodes := len(graph.order)):
            message = f"{stages} stages for {plural(nodes, 'node')}: each stage needs at least one"
            raise SpecError(Problem(message=message, hint=f"set it to {nodes} or less", path=("partition", "stages")))
        if isinstance(schedule, tuple) and len(schedule) != stages:
            message = f"{plural(len(schedule), 'depth')} for {plural(stages, 'stage')}"
            raise SpecError(Problem(message=message, path=("method", "schedule")))
        return None
    given = partition(graph, per_block(graph) if stages == "per-block" else stages, [""])
    check_depths(schedule, graph, given)
    return given


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
    loaded, registry = load(given, overrides), registry or discover()
    problems = ProblemCollector(loaded=loaded, wrong=[*loaded.problems])
    folders = dict.fromkeys((*loaded.folders, *folders, *registry.folders))
    registry = attrs.evolve(registry, folders=tuple(folders))
    check = _Check(loaded=loaded, registry=registry, problems=problems)
    plugins = {kind.table: check.plugin_of(kind) for kind in KINDS if kind.table and not kind.several}
    lists = {kind.table: check.plugins_of(kind) for kind in KINDS if kind.several}
    unread: Sequence[Problem] = ()
    if facts is None:
        plugins["data"], facts, unread = check.data(plugins["data"])
    graph = check.graph(check.nodes(plugins["architecture"], facts, unread))
    method, stages = check.method(), None
    check.devices()
    spec, samples = loaded.spec, None
    if spec is not None and not problems.any:  # Only a graph without problems can be cut.
        if graph is not None and method is not None:
            stages = problems.attempt(given_stages, graph, spec, method[1])
        samples = check.training_samples(plugins["data"], spec.data.validation)
    if spec is None or facts is None or graph is None or method is None:
        problems.fail()
    problems.raise_any()
    return CheckedSpec(
        spec=spec,
        graph=graph,
        method=method[0],
        schedule=method[1],
        stages=stages,
        loaded=loaded,
        facts=facts,
        training_samples=samples,
        callbacks=lists["callback"],
        metrics=lists["metric"],
        **cast(Mapping[str, Plugin], plugins),
    )


@frozen(kw_only=True)
class _Check:
    """The steps; each adds its problems to `problems` and returns the values that it could read, or None."""

    loaded: LoadedSpec
    registry: Registry
    problems: ProblemCollector
    resolved: dict[tuple[str, str], Plugin | None] = field(factory=dict)
    """Plugins by group and name, so that one that many nodes use is reported where it is used first."""

    # --- plugins ---

    def plugin_of(self, kind: PluginKind) -> Plugin | None:
        """Return the plugin of a kind's top-level table."""
        part = self.loaded.parts.get((kind.table,))
        return None if part is None else self.configured(kind, part.name, part.options, (kind.table,))

    def plugins_of(self, kind: PluginKind) -> tuple[Plugin, ...]:
        """Return the plugins of a kind's array of tables, each of which may be there once; a metric once under each name."""
        found: dict[str, Plugin] = {}
        for path, part in self.loaded.parts.items():
            if path[:1] != (kind.table,) or not isinstance(part, PluginSpec):
                continue
            configured = self.configured(kind, part.name, part.options, path)
            if configured is None:
                continue
            name = (isinstance(part, MetricSpec) and part.recorded_as) or configured.name.rpartition(":")[2]
            if name not in found:
                found[name] = attrs.evolve(configured, recorded_as=name)
            elif self.loaded.spec is not None or not isinstance(part, MetricSpec):  # another name may not be readable
                hint = f'record it under another name: recorded_as = "{name}-2"' if isinstance(part, MetricSpec) else ""
                message = f"{configured} is listed twice"
                self.problems.add([Problem(message=message, hint=hint, path=(*path, "name"))])
        return tuple(found.values())

    def configured(self, kind: PluginKind, name: str, options: Mapping[str, Any], table: Path) -> Plugin | None:
        """Return the plugin that a table names, with its options."""
        plugin = self.resolve(kind, name, (*table, "name"))
        read = None if plugin is None else self.options(plugin, options, (*table, "options"))
        if read is None or read.options is None:
            return None
        return attrs.evolve(read, seed=None if self.loaded.spec is None else self.loaded.spec.run.seed)

    def resolve(self, kind: PluginKind, name: str, path: Path) -> Plugin | None:
        """Return the plugin of that name. One whose options name the user's code counts as the user's: it is tried before a run."""
        key = (kind.group, name)
        if self.resolved.get(key) is None:
            plugin = self.problems.at(*path).attempt(self.registry.resolve, kind, name)
            with_code = plugin is not None and keys_with(names_code, plugin.schema)
            self.resolved[key] = attrs.evolve(plugin, distribution="") if plugin is not None and with_code else plugin
        return self.resolved[key]

    def options(self, plugin: Plugin, given: Mapping[str, Any], path: Path) -> Plugin:
        """Read the options of a plugin, files relative to the text that names them."""
        files, located = keys_with(FilePath, plugin.schema), self.loaded.layers.located
        given = {key: located(value, (*path, key)) if key in files else value for key, value in given.items()}
        plugin, problems = plugin.read(given, path)
        self.problems.add(problems)
        return plugin

    # --- data and network ---

    def data(self, data: Plugin | None) -> tuple[Plugin | None, DataFacts | None, Sequence[Problem]]:
        """Return the data set with what only its files tell, its facts, and the problems of files that cannot be read."""
        if data is None:
            return None, None, ()
        at, unread = self.problems.at("data", "options"), list[Problem]()
        data = attrs.evolve(at, wrong=unread).attempt(completed, data) or data
        return data, at.attempt(declared_facts, data), unread

    def training_samples(self, data: Plugin | None, validation: object) -> int | None:
        """Return how many training samples there are without a validation share, if the data set's declaration says it."""
        if data is None:
            return None
        found = self.problems.at("data", "options").attempt(declared_samples, data)
        return (
            found if found is None or not isinstance(validation, float) else found - count_of_share(found, validation)
        )

    def nodes(self, architecture: Plugin | None, facts: DataFacts | None, unread: Sequence[Problem]) -> list[NodeInput]:
        """Check the nodes that the specification lists, or that its architecture makes.

        A network that is known without the data is planned without it; otherwise the problems of its files are told.
        """
        if architecture is None:
            listed = {path: part for path, part in self.loaded.parts.items() if isinstance(part, NodeSpec)}
            return [self.node(node, path) for path, node in listed.items()]
        at = self.problems.at("architecture", "options")
        if unread:
            at = attrs.evolve(at, wrong=[])
        # It draws nothing, and the paths of its problems count from its options here.
        build = attrs.evolve(architecture, path=(), seed=None).build
        expanded = None if facts is None else at.attempt(build, facts)
        if expanded is None:
            self.problems.add(unread)
            return []
        return [self.node(node, ("architecture",)) for node in expanded]

    def node(self, node: NodeSpec, path: Path) -> NodeInput:
        plugin = self.resolve(BLOCK, node.block, (*path, "block"))
        plugin = head_of(plugin) if plugin is not None and node.kind == "head" else plugin
        read = None if plugin is None else self.options(plugin, node.options, (*path, "options"))
        return NodeInput(spec=node, plugin=read, path=path)

    def graph(self, nodes: list[NodeInput]) -> NodeGraph | None:
        """Apply the graph's rules, where every node could be read: a missing one, or one of an unknown block, would break rules by its absence."""
        given = self.loaded.layers.values.get("graph")
        tables = given.get("node") if isinstance(given, Mapping) else None
        unread = isinstance(tables, list) and len(tables) > len(nodes)
        if not nodes or unread or any(node.plugin is None for node in nodes):
            return None
        graph, problems = build_graph(nodes)
        self.problems.add(problems)
        return graph

    # --- method, devices, stages ---

    def method(self) -> tuple[Method, RequestedSchedule] | None:
        """Return the method and the schedule, if they go together with each other and with the clipping."""
        method, optimizer = self.loaded.parts.get(("method",)), self.loaded.parts.get(("optimizer",))
        if method is None:
            return None
        found = self.problems.attempt(check_method, method, optimizer.clip if optimizer is not None else None)
        if found is not None and self.loaded.spec is not None:
            self.problems.add(old_graph_problems(self.loaded.spec, found[0]))
        return found

    def devices(self) -> None:
        """Check the devices, which need not be present."""
        if (partition := self.loaded.parts.get(("partition",))) is not None:
            if any(problem.path[:2] == ("partition", "device") for problem in self.loaded.problems):
                partition = attrs.evolve(partition, device_type=None)  # it may name what could not be read
            self.problems.add(device_problems(partition))
