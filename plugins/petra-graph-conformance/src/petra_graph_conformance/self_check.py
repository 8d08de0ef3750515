"""The self-check at the start of a run: plugins that are not the first party's, tried in this network before it trains.

    blocks       the promises of their kind on the real shapes of their streams: at a glance, then one by one where the glance finds a fault
    optimizer    all promises of its kind, on small parameters
    data set     one micro-batch of each split, fetched, compared with what is declared, and finite; some samples again and again
    lr schedule  the learning rates of some updates, over the whole run, twice
    loss         outputs of the head's shape against real targets: a finite scalar with a gradient, the mean over the samples, and
                 metrics that are sums over them
    metrics      outputs of the head's shape against the same targets: values, whole and in batches

The kinds say which promises these are (`Promise.before_run`): only those that hold wherever a plugin is right, and cost a few samples;
what breaks one and may be meant is a warning (`Promise.doubt`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain
from typing import cast

import numpy as np
from attrs import evolve, field, frozen
from torch import Tensor

from petra_graph.errors import PluginError, Problem, RunFailed, at_path
from petra_graph.executor.learning_rate import learning_rate
from petra_graph.kinds.checked_samples import CheckedSplit
from petra_graph.kinds.tensor_trees import Tree, main
from petra_graph.planning.check.checked_spec import CheckedSpec
from petra_graph.training.head_and_targets import HeadAndTargets, targets_of
from petra_graph.training.prepared_run import Prepared
from petra_graph.training.start_reporter import StartReporter
from petra_graph_conformance.all_checks import checks_of
from petra_graph_conformance.broken_promise import BrokenPromise
from petra_graph_conformance.examined_promises import examine
from petra_graph_conformance.kinds.data_set_trial import DataSetTrial
from petra_graph_conformance.kinds.loss_trial import LossTrial
from petra_graph_conformance.kinds.lr_schedule import LrScheduleTrial
from petra_graph_conformance.kinds.metric import MetricTrial
from petra_graph_conformance.kinds.optimizer_trial import OptimizerTrial
from petra_graph_conformance.plugin_trial import PluginTrial
from petra_graph_conformance.self_checked_blocks import BlocksOfRun, doubt_of, problem_of


@frozen(kw_only=True)
class SelfCheck:
    """The plugins of a run, tried before it trains."""

    prepared: Prepared
    reporter: StartReporter
    fit: HeadAndTargets
    blocks: BlocksOfRun
    _doubts: list[str] = field(factory=list, init=False)

    @classmethod
    def of(cls, prepared: Prepared, reporter: StartReporter) -> SelfCheck:
        fit = HeadAndTargets(network=prepared.network, opened=prepared.opened, loss=prepared.training.loss)
        kept = {
            name
            for program in prepared.programs
            for segment in program.segments
            if segment.keeps == "graph"
            for name in segment.nodes
        }
        return cls(prepared=prepared, reporter=reporter, fit=fit, blocks=BlocksOfRun(fit=fit, kept=kept))

    def run(self) -> Sequence[str]:
        """Try all plugins that are not the first party's, and return warnings of what may be meant.

        Raises:
            PluginError: a plugin breaks its promises: all of them, each with what was found and what to do; or the data set
                raised, or returned what it does not declare.
        """
        blocks = self.blocks.problems(self._step)
        _raise_any([*blocks, *self._optimizer(), *self._lr_schedule(), *self._added()])
        loss, data_set = self._checked.loss.plugin, self._checked.data.plugin
        strangers = [one.plugin for one in self._checked.metrics if not one.plugin.is_first_party]
        targets = of_micro_batch = None
        with self._step(data_set.owned):
            try:
                if not (data_set.is_first_party and loss.is_first_party):
                    of_micro_batch = self._fetched()
                problems = list(self._data_set())
                if strangers or not loss.is_first_party:
                    targets = self.fit.some_targets()
            except RunFailed as error:
                raise PluginError([evolve(one, path=("data", "name")) for one in error.problems]) from error
        _raise_any(problems)
        with self._step(loss.owned):
            if targets is None or loss.is_first_party:
                trial = self._loss_trial(self.fit.zeros())
                _raise_any([problem_of(loss, one, ("loss",)) for one in self._broken(trial, "logits")])
            elif self.fit.several:
                for train in (True, False):  # what the loss is called with in training, and in evaluation
                    _raise_any(list(self._loss(targets, outputs=self.fit.returned(len(main(targets)), train=train))))
            else:
                _raise_any(list(self._loss(targets, of_micro_batch)))
        self._metrics(targets)
        return [*self.blocks.doubts, *self._doubts]

    @property
    def _checked(self) -> CheckedSpec:
        return self.prepared.checked

    def _step(self, what: str) -> AbstractContextManager[None]:
        return self.reporter.step(f"trying {what}", self.prepared.spec.run.watchdog)

    def _optimizer(self) -> Iterator[Problem]:
        plugin = self._checked.optimizer.plugin
        if plugin.is_first_party:
            return
        with self._step(plugin.owned):
            found = examine(OptimizerTrial(plugin=plugin, options=self._checked.optimizer.options), "before_run").broken
        for outcome in found:
            problem = problem_of(plugin, outcome, ("optimizer", "name"))
            yield evolve(problem, message=outcome.found) if outcome.found.startswith(plugin.owned) else problem

    def _lr_schedule(self) -> Sequence[Problem]:
        schedule, horizon, stages = self._checked.lr_schedule, self.prepared.opened.horizon, self.prepared.stages
        plugin = schedule.plugin
        if plugin.is_first_party:
            return ()
        trial = LrScheduleTrial(
            plugin=plugin,
            options=schedule.options,
            horizons=[horizon],
            stages=tuple(dict.fromkeys((stages[-1], stages[0]))),
            of_run=self.prepared.training.rate,
            full=learning_rate(self._checked.spec, self._checked.optimizer.options.lr, lambda _: 1.0, horizon),
        )
        try:
            with self._step(plugin.owned), at_path("lr_schedule", "name"):
                found = next(filter(None, ([*self._broken(case)] for case in trial.cases)), [])
                return [problem_of(plugin, broken, ("lr_schedule", "name")) for broken in found]
        except PluginError as error:
            return error.problems

    def _added(self) -> Iterator[Problem]:
        """Ask the plugins of added kinds in the first of their likely trials."""
        for one in chain(*self._checked.added.values()):
            with self._step(one.plugin.owned):
                trial, *_ = checks_of(one.plugin.kind).trials_of(one.plugin, one.options)
                report = examine(trial, "before_run")
                for outcome in report.broken:
                    yield problem_of(one.plugin, outcome, (*one.path[:-1], "name"))
                self._doubts.extend(doubt_of(one.plugin, outcome) for outcome in report.doubtful)

    def _data_set(self) -> Iterator[Problem]:
        """Yield the problem, if any, that samples of a split depend on more than their indices, the seed and the epoch."""
        plugin = self._checked.data.plugin
        if plugin.is_first_party:
            return
        trial = DataSetTrial(plugin=plugin, options=self._checked.data.options, of_run=self.prepared.opened.data)
        for _, split, indices in trial.splits:
            cast(CheckedSplit, split).require_finite(indices, seed=0, epoch=0)
        if found := list(self._broken(trial)):  # the first explains the others
            others = dict.fromkeys(one.promise for one in found if one.promise != found[0].promise)
            yield problem_of(plugin, found[0], ("data", "name"), list(others))

    def _loss(self, targets: Tree, of_micro_batch: Tensor | None = None, outputs: Tree = None) -> Iterator[Problem]:
        plugin = self._checked.loss.plugin
        with at_path("loss", "name"):
            found = list(self._broken(self._loss_trial(targets, of_micro_batch, outputs)))
        explaining = [broken for broken in found if broken.promise == "untouched"]
        for broken in explaining or found:
            yield problem_of(plugin, broken, ("loss", "name"))

    def _loss_trial(self, targets: Tree, of_micro_batch: Tensor | None = None, outputs: Tree = None) -> LossTrial:
        head = self.fit.head
        own = head.plugin is None or head.plugin.is_first_party
        return LossTrial(
            plugin=self._checked.loss.plugin,
            options=self._checked.loss.options,
            output=self.fit.output,
            of_run=(self.prepared.training.loss, targets),
            outputs=outputs,
            micro_batch=of_micro_batch,
            head=None if own or self.fit.several else partial(self.blocks.outputs_of, head),
        )

    def _metrics(self, targets: Tree | None) -> None:
        """Try the metrics that are not the first party's.

        Raises:
            PluginError: one breaks a promise.
        """
        for one in self._checked.metrics:
            if one.plugin.is_first_party or self.prepared.facts.several_targets:
                continue
            path = (*one.path[:-1], "name")
            trial = MetricTrial(plugin=one.plugin, options=one.options, output=self.fit.output, of_run=targets)
            with self._step(one.plugin.owned), at_path(*path):  # the first broken promise explains the others
                _raise_any([problem_of(one.plugin, broken, path) for broken in self._broken(trial)][:1])

    def _fetched(self) -> Tree:
        """Fetch a micro-batch of each split, and return the test targets."""
        data, rows = self.prepared.opened.data, self.prepared.spec.data.batch
        for split in (data.train, data.test):
            indices = np.arange(min(rows, len(split)))
            split.require_finite(indices, seed=0, epoch=0)
        return targets_of(data.test, indices)

    def _broken(self, trial: PluginTrial, only: str = "") -> Iterator[BrokenPromise]:
        """Ask a plugin's promises in a trial of the run's own, or only one, and yield those that it breaks; its errors are not caught."""
        for promise in checks_of(trial.kind).asked("before_run"):
            if only not in {"", promise.name}:
                continue
            try:
                promise.check(trial)
            except BrokenPromise as broken:
                if promise.doubt:
                    self._doubts.append(doubt_of(trial.plugin, broken))
                else:
                    yield broken


def _raise_any(problems: Sequence[Problem]) -> None:
    if problems:
        raise PluginError(problems)
