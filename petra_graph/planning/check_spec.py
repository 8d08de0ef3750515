"""The check step: keys, types, plugins with their options, the architecture written out as nodes, the graph's rules, method, precision, stages.

What shapes show is the next step's, which builds the network (`planning.network.measure`).

Decision: no problem hides another. Each step works with the parts that the steps before it could read, and all
problems are raised together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any, ParamSpec, TypeVar, cast

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
from petra_graph.errors import NoFeasiblePlan, Path, PluginError, Problem, SpecError
from petra_graph.graph.node_graph import NodeGraph, NodeInput, build_graph
from petra_graph.plugins.contract import BLOCK, KINDS, Plugin, PluginKind, head_of, names_code
from petra_graph.plugins.data_set import DataFacts, completed, count_of_share, declared_facts
from petra_graph.plugins.loss_and_metric import Scale, scale_in
from petra_graph.plugins.registry import Registry, discover
from petra_graph.plugins.stage_facts import DELAYED
from petra_graph.program.method import Method
from petra_graph.program.stage_program import Partition
from petra_graph.spec.load_spec import Given, LoadedSpec, load
from petra_graph.spec.model import MetricSpec, NodeSpec, PluginSpec, RequestedSchedule, Spec
from petra_graph.spec.strict_values import keys_with
from petra_graph.units import plural

P = ParamSpec("P")
T = TypeVar("T")


@frozen(kw_only=True)
class ProblemCollector:
    """Problems of the specification with problems of plugins, which end in different exit codes; `loaded` locates them in its files."""

    loaded: LoadedSpec
    path: Path = ()
    """Where the paths of the problems begin."""
    wrong: list[Problem] = field(factory=list)
    broken: list[Problem] = field(factory=list)

    def at(self, *path: str | int) -> ProblemCollector:
        """Return the same collector for the problems of a part of the specification, whose paths begin there."""
        return attrs.evolve(self, path=path)

    def add(self, problems: Iterable[Problem], *, of_plugin: bool = False) -> None:
        (self.broken if of_plugin else self.wrong).extend(map(self._under_path, problems))

    def _under_path(self, problem: Problem) -> Problem:
        return problem if problem.where is not None else attrs.evolve(problem, path=(*self.path, *problem.path))

    def attempt(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return the value of a step, or None where the step raised SpecError or PluginError; NoFeasiblePlan passes, located, if nothing else is wrong."""
        try:
            return step(*args, **kwargs)
        except (SpecError, PluginError) as error:
            self.add(error.problems, of_plugin=isinstance(error, PluginError))
        except NoFeasiblePlan as error:
            self.raise_any()
            raise NoFeasiblePlan(self.loaded.in_order(map(self._under_path, error.problems))) from None
        return None

    def require(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the value of the last step, or raise all problems as `raise_any`."""
        value = self.attempt(step, *args, **kwargs)
        self.raise_any()
        return value  # type: ignore[return-value]  # A step that returned None has done so without an error.

    def raise_any(self) -> None:
        """Raise all problems that were found, located and in reading order: SpecError, or PluginError if only plugins are at fault."""
        if self.wrong or self.broken:
            kind = SpecError if self.wrong else PluginError
            raise kind(self.loaded.in_order([*self.wrong, *self.broken]))


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
    """None where the data set's declaration cannot say how many there are, and it is not open."""
    callbacks: tuple[Plugin, ...]
    """In the order in which they are called."""
    metrics: tuple[Plugin, ...]
    """Of the evaluations, each with a label of its own."""
    architecture: Plugin | None = None
    """What has written out the graph; None where the specification lists its nodes."""

    def variant(self, spec: Spec) -> CheckedSpec:
        """Return the same network under another specification; SpecError: its method or stages are wrong."""
        method, schedule = check_method(spec.method, spec.optimizer.clip)
        refuse(old_graph_problems(spec, method))
        stages = given_stages(self.graph, spec, schedule)
        return attrs.evolve(self, spec=spec, method=method, schedule=schedule, stages=stages)

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
        blocks = [node.plugin for node in self.graph.nodes.values() if node.plugin is not None]
        return [self.loss, self.optimizer, self.lr_schedule, self.data, *self.callbacks, *self.metrics, *blocks]


def given_stages(graph: NodeGraph, spec: Spec, schedule: RequestedSchedule) -> Partition | None:
    """Return the stages that the specification lists, or one for each node; None where it gives a number of stages.

    SpecError: the stages do not fit the network, or the listed depths the stages, or nodes cannot keep what is listed for them.
    """
    refuse(keep_problems(spec.method, graph))
    stages, depths = spec.partition.stages, schedule if isinstance(schedule, tuple) else None
    if stages == "auto":
        stages = 1 if depths is None else len(depths)
    if not isinstance(stages, int):
        given = partition(graph, per_block(graph) if stages == "per-block" else stages, [""])
        check_depths(schedule, graph, given)
        return given
    if stages > (nodes := len(graph.order)):
        message = f"{stages} stages for {plural(nodes, 'node')}: each stage needs at least one"
        raise SpecError(Problem(message=message, hint=f"set it to {nodes} or less", path=("partition", "stages")))
    if depths is not None and len(depths) != stages:
        message = f"{plural(len(depths), 'depth')} for {plural(stages, 'stage')}"
        raise SpecError(Problem(message=message, path=("method", "schedule")))
    return None


def check_spec(
    given: Given,
    overrides: Iterable[str] = (),
    *,
    registry: Registry | None = None,
    folders: Iterable[str] = (),
    facts: DataFacts | None = None,
) -> CheckedSpec:
    """Check a specification: a TOML file, "-" for the standard input, or one made in code; SpecError, PluginError: all problems.

    Args:
        overrides: `--set` assignments, KEY=VALUE.
        registry: the plugins; None: those that are installed.
        folders: where their modules may be, in addition to the specification's folder and the current one.
        facts: of the data, where a run has stored them; None: the data set's declaration says them.
    """
    loaded, registry = load(given, overrides), registry or discover()
    registry = attrs.evolve(registry, folders=tuple(dict.fromkeys((*loaded.folders, *folders, *registry.folders))))
    problems = ProblemCollector(loaded=loaded, wrong=[*loaded.problems])
    spec, parts, tables = loaded.spec, loaded.parts, _PluginTables(loaded=loaded, registry=registry, problems=problems)
    plugins = {kind.table: tables.configured(kind, (kind.table,)) for kind in KINDS if kind.table and not kind.several}
    lists = {kind.table: tables.several(kind) for kind in KINDS if kind.several}

    # Files of the data that cannot be read are told where the network needs what they say.
    data, of_data, unread = plugins["data"], problems.at("data", "options"), list[Problem]()
    if facts is None and data is not None:
        data = plugins["data"] = attrs.evolve(of_data, wrong=unread).attempt(completed, data) or data
        facts = of_data.attempt(declared_facts, data)

    graph = tables.graph(plugins["architecture"], facts, unread)
    method, optimizer = None, parts.get(("optimizer",))
    if (chosen := parts.get(("method",))) is not None:
        method = problems.attempt(check_method, chosen, optimizer.clip if optimizer is not None else None)
    if method is not None and spec is not None:
        problems.add(old_graph_problems(spec, method[0]))
    if (devices := parts.get(("partition",))) is not None:
        problems.add(device_problems(devices))
    problems.raise_any()  # only a graph without problems can be cut
    assert spec is not None
    assert facts is not None
    assert graph is not None
    assert method is not None
    assert data is not None
    stages = problems.attempt(given_stages, graph, spec, method[1])
    samples = of_data.attempt(data.ask, "training_samples")
    problems.raise_any()
    if samples is not None and isinstance(share := spec.data.validation, float):
        samples -= count_of_share(samples, share)
    if patterns := spec.init.freeze:
        graph = NodeGraph(nodes={name: attrs.evolve(node, frozen=patterns) for name, node in graph.nodes.items()})
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
class _PluginTables:
    """The plugins that tables name, with their options; what is wrong with one is added to `problems`, and it is None."""

    loaded: LoadedSpec
    registry: Registry
    problems: ProblemCollector
    resolved: dict[tuple[str, str], Plugin] = field(factory=dict)
    """By group and name."""

    def configured(self, kind: PluginKind, path: Path) -> Plugin | None:
        """Return the plugin that the table at a path names, with its options."""
        if (part := self.loaded.parts.get(path)) is None:
            return None
        plugin = self.read(kind, part.name, part.options, path, "name")
        if plugin is None or plugin.options is None:
            return None
        return attrs.evolve(plugin, seed=None if self.loaded.spec is None else self.loaded.spec.run.seed)

    def several(self, kind: PluginKind) -> tuple[Plugin, ...]:
        """Return the plugins of a kind's array of tables, each of which may be there once; a metric once under each name."""
        found: dict[str, Plugin] = {}
        for path, part in self.loaded.parts.items():
            if path[:1] != (kind.table,) or not isinstance(part, PluginSpec):
                continue
            if (configured := self.configured(kind, path)) is None:
                continue
            name = (isinstance(part, MetricSpec) and part.recorded_as) or configured.name.rpartition(":")[2]
            if name not in found:
                found[name] = attrs.evolve(configured, recorded_as=name)
            elif self.loaded.spec is not None:  # else another name may not be readable
                hint = f'record it under another name: recorded_as = "{name}-2"' if isinstance(part, MetricSpec) else ""
                twice = Problem(message=f"{configured} is listed twice", hint=hint, path=(*path, "name"))
                self.problems.add([twice])
        return tuple(found.values())

    def graph(
        self, architecture: Plugin | None, facts: DataFacts | None, unread: Sequence[Problem]
    ) -> NodeGraph | None:
        """Return the graph of the nodes that the specification lists, or that its architecture makes.

        `unread` are the problems of the data's files; a network that is known without these is planned without them.
        """
        if architecture is None:
            listed = [(part, path) for path, part in self.loaded.parts.items() if isinstance(part, NodeSpec)]
        else:
            at = self.problems.at("architecture", "options")
            if unread:
                at = attrs.evolve(at, wrong=[])
            # It draws nothing, and the paths of its problems count from its options here.
            build = attrs.evolve(architecture, path=(), seed=None).build
            expanded = None if facts is None else at.attempt(build, facts)
            if expanded is None:
                self.problems.add(unread)
            listed = [(part, ("architecture",)) for part in expanded or ()]
        nodes = list[NodeInput]()
        for part, path in listed:
            plugin = self.read(BLOCK, part.block, part.options, path, "block")
            # Any module is the head where a node says so: what it returns goes to the loss as it is.
            plugin = head_of(plugin) if plugin is not None and part.kind == "head" else plugin
            nodes.append(NodeInput(spec=part, plugin=plugin, path=path))
        given = self.loaded.values.get("graph")
        tables = given.get("node") if isinstance(given, Mapping) else None
        # A node that could not be read, or whose block is unknown, would break rules of the graph by its absence.
        if (isinstance(tables, list) and len(tables) > len(nodes)) or not all(one.plugin for one in nodes) or not nodes:
            return None
        graph, problems = build_graph(nodes)
        self.problems.add(problems)
        return graph

    def read(self, kind: PluginKind, name: str, given: Mapping[str, Any], table: Path, key: str) -> Plugin | None:
        """Return the plugin of that name, or None if no plugin has it; wrong options leave it without options.

        One whose options name the user's code counts as the user's: it is tried before a run.
        """
        at = kind.group, name
        if (plugin := self.resolved.get(at)) is None:
            plugin = self.problems.at(*table, key).attempt(self.registry.resolve, kind, name)
            if plugin is None:
                return None
            if keys_with(names_code, plugin.schema):
                plugin = attrs.evolve(plugin, distribution="")
            self.resolved[at] = plugin
        # Files are relative to the text that names them.
        files, path = keys_with(FilePath, plugin.schema), (*table, "options")
        located = self.loaded.located
        options = {key: located(value, (*path, key)) if key in files else value for key, value in given.items()}
        plugin, problems = plugin.read(options, path)
        self.problems.add(problems)
        return plugin
