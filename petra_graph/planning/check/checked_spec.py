"""A specification without problems: the value that the check step returns."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from attrs import evolve, frozen

from petra_graph.compiler.lower import partition, per_block
from petra_graph.compiler.spec_checks import (
    check_depths,
    check_method,
    check_number_of_stages,
    check_old_graphs,
    keep_problems,
)
from petra_graph.errors import Path, PluginError, Problem, SpecError
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.plugins.contract import Plugin, build_plugin
from petra_graph.plugins.data_set import DataFacts
from petra_graph.plugins.loss_and_metric import Loss, Scale, scale_in
from petra_graph.plugins.stage_facts import DELAYED, StageFacts
from petra_graph.program.method import Method
from petra_graph.program.placement import Partition
from petra_graph.spec.load_spec import LoadedSpec
from petra_graph.spec.model import RequestedSchedule, Spec


@frozen(kw_only=True)
class ConfiguredPlugin:
    """A plugin that the specification names, with its options read."""

    plugin: Plugin
    options: Any
    path: Path
    """Of the options in the specification."""
    label: str = ""
    """The name under which a metric's values are recorded."""
    seed: int | None = None
    """Of the run: what the plugin draws while it is built follows from it."""

    def build(self, *others: Any, stage: StageFacts | None = None) -> Any:
        """Return what the plugin's code makes of its options and these arguments, checked against the contract of its kind.

        Args:
            stage: as in `build_plugin`.

        Raises:
            SpecError: it refuses its options, or what they name; paths that count from the options count from the specification.
            PluginError: its code failed, or breaks the contract.
        """
        try:
            return build_plugin(self.plugin, self.options, *others, stage=stage, seed=self.seed)
        except SpecError as error:
            raise SpecError(map(self.locate, error.problems)) from error
        except PluginError as error:
            raise PluginError(map(self.locate, error.problems)) from error.__cause__ or error

    def locate(self, problem: Problem) -> Problem:
        """Return a problem at the option that it names, or at the plugin's name."""
        path = (*self.path, *problem.path) if problem.path else (*self.path[:-1], "name")
        return problem if problem.where else evolve(problem, path=path)


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
    loss: ConfiguredPlugin
    optimizer: ConfiguredPlugin
    lr_schedule: ConfiguredPlugin
    data: ConfiguredPlugin
    facts: DataFacts
    training_samples: int | None
    """None where the data set's declaration cannot say how many there are."""
    callbacks: tuple[ConfiguredPlugin, ...]
    """In the order in which they are called; the last one may be TensorBoard, which is not listed."""
    metrics: tuple[ConfiguredPlugin, ...]
    """Of the evaluations, each with a label of its own."""
    architecture: ConfiguredPlugin | None = None
    """What has written out the graph; None where the specification lists its nodes."""

    def variant(self, spec: Spec, graph: NodeGraph | None = None) -> CheckedSpec:
        """Return the same network under another specification.

        Args:
            graph: as it was measured, where that is known.

        Raises:
            SpecError: the other specification's method or stages are wrong.
        """
        method, schedule = check_method(spec.method, spec.optimizer.clip)
        check_old_graphs(spec, method)
        stages = given_stages(graph or self.graph, spec, schedule)
        return evolve(self, spec=spec, method=method, schedule=schedule, stages=stages)

    def build_loss(self) -> Loss:
        """Return the loss of training and evaluations; errors as of `ConfiguredPlugin.build`."""
        loss: Loss = self.loss.build()
        return loss

    @cached_property
    def tried_optimizer(self) -> Any:
        """The optimizer of one parameter, in a stage whose gradients are late; errors as of `ConfiguredPlugin.build`."""
        import torch

        from petra_graph.blocks.block_kinds import ParameterGroups

        groups = ParameterGroups(decayed=[torch.nn.Parameter(torch.zeros(1))], undecayed=[])
        return self.optimizer.build(groups, stage=DELAYED)

    @property
    def scales(self) -> dict[str, Scale]:
        """How the values of the metrics are read, by their labels."""
        return {one.label: scale_in(one.plugin) for one in self.metrics}

    @property
    def plugins(self) -> list[Plugin]:
        """All plugins that the specification uses, blocks among them."""
        tables = (self.loss, self.optimizer, self.lr_schedule, self.data, *self.callbacks, *self.metrics)
        blocks = [node.plugin for node in self.graph.nodes.values() if node.plugin is not None]
        return [*(one.plugin for one in tables), *blocks]


def given_stages(graph: NodeGraph, spec: Spec, schedule: RequestedSchedule) -> Partition | None:
    """Return the stages that the specification lists, or one for each node; None where it gives a number of stages.

    Raises:
        SpecError: the listed stages do not fit the network, or the listed depths do not fit the stages, or nodes cannot keep what is
            listed for them.
    """
    if problems := list(keep_problems(spec.method, graph)):
        raise SpecError(problems)
    stages = spec.partition.stages
    if stages == "auto":
        stages = len(schedule) if isinstance(schedule, tuple) else 1
    if isinstance(stages, int):
        check_number_of_stages(stages, schedule, graph)
        return None
    given = partition(graph, per_block(graph) if stages == "per-block" else stages, [""])
    check_depths(schedule, graph, given)
    return given
