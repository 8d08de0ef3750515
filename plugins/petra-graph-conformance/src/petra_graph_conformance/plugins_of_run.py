"""The plugins of a run that are not this project's, and how each is tried in its network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Any

import numpy as np
from attrs import evolve, frozen

from petra_graph.blocks import Block, Shape
from petra_graph.blocks.parameter_groups import parameter_groups
from petra_graph.errors import Path
from petra_graph.executor.learning_rate import learning_rate
from petra_graph.graph.node_graph import Node
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.tensor_trees import Tree, main
from petra_graph.measure.initial_blocks import initial_blocks
from petra_graph.planning.check.checked_spec import CheckedSpec, ConfiguredPlugin
from petra_graph.training.prepared_run import Prepared
from petra_graph_conformance.all_checks import checks_of
from petra_graph_conformance.blocks_of_run import BlocksOfRun
from petra_graph_conformance.head_and_targets import HeadAndTargets, targets_of
from petra_graph_conformance.kinds.architecture import ArchitectureTrial
from petra_graph_conformance.kinds.data_set_trial import DataSetTrial
from petra_graph_conformance.kinds.loss_trial import LossTrial
from petra_graph_conformance.kinds.lr_schedule import LrScheduleTrial
from petra_graph_conformance.kinds.metric import MetricTrial
from petra_graph_conformance.kinds.optimizer_trial import OptimizerTrial
from petra_graph_conformance.outputs_and_targets import classes_of, values_like
from petra_graph_conformance.plugin_trial import AnyTrial
from petra_graph_conformance.promise_report import Outcome

_MOST_PARAMETERS, _LARGEST, _SHAPES = 2**24, 2**12, 4
"""The largest network whose shapes an optimizer is tried with, its largest parameter that is taken, and the number of shapes."""


@frozen(kw_only=True)
class Asked:
    """A plugin of a run, and how it is tried.

    Attributes:
        plugin: of the run.
        path: of the problem in the specification.
        how: what its trials follow from besides the code: options, shapes, data.
        trials: makes them.
        where: the nodes, as messages begin; "" of other plugins.
        only: the promises that are asked; (): all.
        judged: returns which broken promises matter, and a note of why others do not.
    """

    plugin: Plugin
    path: Path
    how: Sequence[Any]
    trials: Callable[[], Sequence[AnyTrial]]
    where: str = ""
    only: Sequence[str] = ()
    judged: Callable[[AnyTrial, Sequence[Outcome]], tuple[Sequence[Outcome], str]] = lambda _, outcomes: (outcomes, "")


@frozen(kw_only=True)
class PluginsOfRun:
    """The plugins of a run."""

    prepared: Prepared

    def every(self) -> Iterator[Asked]:
        """Yield the plugins to be asked: those whose errors would be blamed on others first."""
        checked = self._checked
        yield from self._architecture()
        yield from self._blocks()
        yield from self._optimizer()
        for one in chain(*checked.added.values()):
            if is_foreign(one.plugin):
                yield self._as_by_check(one)
        for one in (*checked.loggers, *checked.callbacks):
            if is_foreign(one.plugin):
                yield self._as_by_check(one)
        yield from self._lr_schedule()
        yield from self._data_set()
        yield from self._loss()
        yield from self._metrics()

    @property
    def _checked(self) -> CheckedSpec:
        return self.prepared.checked

    @cached_property
    def _fit(self) -> HeadAndTargets:
        return HeadAndTargets(self.prepared)

    @cached_property
    def _of_run(self) -> BlocksOfRun:
        segments = [segment for program in self.prepared.programs for segment in program.segments]
        kept = {name for segment in segments if segment.keeps == "graph" for name in segment.nodes}
        return BlocksOfRun(fit=self._fit, kept=kept)

    def _architecture(self) -> Iterator[Asked]:
        """Yield the architecture, whose graph and shapes the run has measured."""
        architecture = self._checked.architecture
        if architecture is not None and is_foreign(architecture.plugin):
            facts = self.prepared.facts
            trial = ArchitectureTrial(plugin=architecture.plugin, options=architecture.options, facts=facts)
            yield Asked(
                plugin=architecture.plugin,
                path=("architecture", "name"),
                how=[architecture.options, facts],
                trials=lambda: [trial],
            )

    def _blocks(self) -> Iterator[Asked]:
        foreign = [node for node in self._nodes if node.plugin is not None and is_foreign(node.plugin)]
        for alike in self._of_run.alike(foreign):
            node = alike[0]
            assert node.plugin is not None
            more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
            yield Asked(
                plugin=node.plugin,
                path=node.path,
                how=self._of_run.how(node)[1:],
                trials=partial(self._trials_of, node),
                where=f'node "{node.name}"{more}: ',
                judged=partial(self._of_run.broken, node),
            )

    def _trials_of(self, node: Node) -> Sequence[AnyTrial]:
        return [self._of_run.trial(node)]

    def _optimizer(self) -> Iterator[Asked]:
        optimizer = self._checked.optimizer
        if not is_foreign(optimizer.plugin):
            return

        def trials() -> Sequence[AnyTrial]:
            """Return a trial with the parameters that `check` has, and with some of the network's shapes beside them."""
            trial = OptimizerTrial(plugin=optimizer.plugin, options=optimizer.options)
            decayed, undecayed = self._shapes_of_parameters()
            return [evolve(trial, decayed=[*trial.decayed, *decayed], undecayed=[*trial.undecayed, *undecayed])]

        how = [optimizer.options, [self._of_run.how(node)[1:] for node in self._nodes]]
        yield Asked(plugin=optimizer.plugin, path=("optimizer", "name"), how=how, trials=trials)

    def _shapes_of_parameters(self) -> tuple[list[Shape], list[Shape]]:
        """Return a few shapes of the network's small parameters: of those to which weight decay applies, and of the others."""
        groups = parameter_groups(self._blocks_by_node.values())
        small = (
            dict.fromkeys(tuple(one.shape) for one in group if one.numel() <= _LARGEST)
            for group in (groups.decayed, groups.undecayed)
        )
        decayed, undecayed = (list(shapes)[:_SHAPES] for shapes in small)
        return decayed, undecayed

    @cached_property
    def _blocks_by_node(self) -> Mapping[str, Block]:
        """The blocks of a network that is not large, as a run begins with them."""
        network = self.prepared.network
        if network.parameters > _MOST_PARAMETERS:
            return {}
        return initial_blocks(network.graph, network.shapes, network.spec.run.seed, network.graph.order)

    @property
    def _nodes(self) -> Sequence[Node]:
        """The nodes that have a block, in their order."""
        graph = self.prepared.network.graph
        return [node for name in graph.order if (node := graph.nodes[name]).plugin is not None]

    def _as_by_check(self, one: ConfiguredPlugin) -> Asked:
        """Return a plugin in the first of its likely trials."""
        return Asked(
            plugin=one.plugin,
            path=(*one.path[:-1], "name"),
            how=[one.options],
            trials=lambda: checks_of(one.plugin.kind).trials_of(one.plugin, one.options)[:1],
        )

    def _lr_schedule(self) -> Iterator[Asked]:
        schedule, prepared = self._checked.lr_schedule, self.prepared
        if not is_foreign(schedule.plugin):
            return
        horizon, stages = prepared.opened.horizon, prepared.stages
        trial = LrScheduleTrial(
            plugin=schedule.plugin,
            options=schedule.options,
            horizons=[horizon],
            stages=tuple(dict.fromkeys((stages[-1], stages[0]))),
            of_run=prepared.training.rate,
            full=learning_rate(self._checked.spec, self._checked.optimizer.options.lr, lambda _: 1.0, horizon),
        )
        how = [schedule.options, horizon, trial.stages, self._checked.spec.lr_schedule]
        yield Asked(plugin=schedule.plugin, path=("lr_schedule", "name"), how=how, trials=lambda: [trial])

    def _data_set(self) -> Iterator[Asked]:
        data = self._checked.data
        if is_foreign(data.plugin):
            trial = DataSetTrial(plugin=data.plugin, options=data.options, of_run=self.prepared.opened.data)
            how = [data.options, self.prepared.digests]

            def trials() -> Sequence[AnyTrial]:
                self._micro_batch()
                return [trial]

            yield Asked(plugin=data.plugin, path=("data", "name"), how=how, trials=trials)

    def _loss(self) -> Iterator[Asked]:
        loss, head = self._checked.loss, self._fit.head
        foreign_head = head.plugin is not None and is_foreign(head.plugin) and not self._fit.several
        trial = LossTrial(
            plugin=loss.plugin,
            options=loss.options,
            output=self._fit.output,
            head=partial(self._of_run.outputs_of, head) if foreign_head else None,
        )
        how = [
            loss.options,
            trial.output,
            self._checked.data.options,
            self.prepared.network.spec.precision,
            head.options,
        ]

        def trials() -> Sequence[AnyTrial]:
            if not is_foreign(loss.plugin):
                return [evolve(trial, of_run=(self.prepared.training.loss, self._fit.zeros()))]
            targets = self._fit.some_targets()
            of_run = evolve(trial, of_run=(self.prepared.training.loss, targets))
            if not self._fit.several:
                return [evolve(of_run, micro_batch=self._micro_batch())]
            # what the loss is called with in training, and in evaluation
            return [
                evolve(of_run, outputs=self._fit.returned(len(main(targets)), train=train)) for train in (True, False)
            ]

        if is_foreign(loss.plugin):
            yield Asked(plugin=loss.plugin, path=("loss", "name"), how=[*how, self.prepared.digests], trials=trials)
        elif foreign_head:
            yield Asked(plugin=loss.plugin, path=("loss", "name"), how=how, trials=trials, only=("logits",))

    def _micro_batch(self) -> Tree:
        """Fetch a micro-batch of each split, and return the test targets."""
        data, rows = self.prepared.opened.data, self.prepared.spec.data.batch
        for split in (data.train, data.test):
            indices = np.arange(min(rows, len(split)))
            split.require_finite(indices, seed=0, epoch=0)
        return targets_of(data.test, indices)

    def _metrics(self) -> Iterator[Asked]:
        facts = self.prepared.facts
        for one in self._checked.metrics:
            if not is_foreign(one.plugin) or facts.several_targets:
                continue
            trial = MetricTrial(plugin=one.plugin, options=one.options, output=self._fit.output)

            def trials(trial: MetricTrial = trial) -> Sequence[AnyTrial]:
                """Return a trial with real targets, and one with drawn ones for the promises that need right predictions."""
                of_run = evolve(trial, of_run=self._fit.some_targets())
                of_classes = facts.classes is not None and facts.target_dtype == "int64" and not facts.target_shape
                like = facts.target_shape == trial.output and facts.target_dtype != "int64"
                drawn = classes_of if of_classes else values_like
                return [of_run, evolve(trial, targets=drawn)] if of_classes or like else [of_run]

            how = [one.options, trial.output, self.prepared.digests]
            yield Asked(plugin=one.plugin, path=(*one.path[:-1], "name"), how=how, trials=trials)


def is_foreign(plugin: Plugin) -> bool:
    """Whether a plugin is not of this project, or runs modules of others."""
    return not plugin.is_first_party
