"""The self-check at the start of a run: plugins that are not the first party's, tried in this network before it trains.

    blocks       the promises of their kind on the real shapes of their streams: at a glance, then one by one where the glance finds a fault
    optimizer    all promises of its kind, on small parameters
    data set     one micro-batch of each split, fetched, compared with what is declared, and finite; some samples again and again
    lr schedule  the learning rates of some updates, over the whole run, twice
    metrics      outputs of the head's shape against the same targets: values, whole and in batches; what they and the loss record
    loss         outputs of the head's shape against real targets: a finite scalar with a gradient, the mean over the samples, and
                 metrics that are sums over them

The kinds' own modules say which promises these are (`petra_graph.kinds`, `before_run`): only those that hold wherever a plugin is
right, and cost a few samples; what breaks one and may be meant is a warning (`Promise.doubt`). The check runs on the CPU, before
anything is written, and leaves every generator as it was, so that it changes no bit of the run. `run.self_check = false` leaves it out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from itertools import chain
from math import prod
from typing import cast

import networkx as nx
import numpy as np
import torch
from attrs import evolve, field, frozen
from numpy.typing import NDArray
from torch import Tensor

from petra_graph.blocks import Block, Shape, Streams
from petra_graph.errors import Path, PluginError, Problem, RunFailed, SpecError, at_path, shown, suggestion
from petra_graph.executor.numerics import Normalisation, NumericsContext, place
from petra_graph.executor.reconstruct_recompute_stash import HeadRunner
from petra_graph.executor.stage_update import learning_rate
from petra_graph.graph.node_graph import INPUT, Node
from petra_graph.kinds.author_code import remedy
from petra_graph.kinds.block import BlockDeclaration
from petra_graph.kinds.broken_promise import BrokenPromise
from petra_graph.kinds.checked_samples import CheckedSplit
from petra_graph.kinds.data_set import DataSetTrial, zero_targets
from petra_graph.kinds.examined_promises import examine
from petra_graph.kinds.generators import as_they_were
from petra_graph.kinds.loss import LossTrial
from petra_graph.kinds.lr_schedule import LrScheduleTrial
from petra_graph.kinds.metric import MetricTrial
from petra_graph.kinds.optimizer import OptimizerTrial
from petra_graph.kinds.outputs_and_targets import outputs_for
from petra_graph.kinds.plugin import Plugin, load
from petra_graph.kinds.plugin_trial import PluginTrial
from petra_graph.kinds.promise_report import Outcome
from petra_graph.kinds.stage_facts import StageFacts
from petra_graph.kinds.tensor_trees import Tree, main
from petra_graph.measure.initial_blocks import initial_block
from petra_graph.measure.node_shapes import Memo
from petra_graph.planning.check.checked_spec import CheckedSpec
from petra_graph.planning.network.measure_network import MeasuredNetwork
from petra_graph.promises.block_trial import Trial, normal
from petra_graph.promises.blocks_at_a_glance import looks_sound
from petra_graph.promises.learned_and_running_state import IN_A_FORWARD, remembers_in_buffers
from petra_graph.promises.micro_batches_through_block import Harness
from petra_graph.promises.repeatable_evaluation import batch_and_rows
from petra_graph.training.data.opened_data import OpenedData
from petra_graph.training.loop.metrics_of_evaluation import MetricsOfEvaluation
from petra_graph.training.stage_assembly import Training
from petra_graph.training.start_reporter import StartReporter
from petra_graph.training.streams_of_samples import streams_of_samples

_CAUSES = (
    "construction",
    "shapes",
    "streams untouched",
    "state",
    "randomness",
    "recomputation",
    "same block",
    "inverse",
    "gradients",
    "statistics",
    "evaluation mode",
)
"""Where several promises of a block are broken, the first of these explains the others; "state" is state that moves in any forward."""
_OF_OTHER_EVALUATIONS = ("statistics", "recomputation", "randomness", "gradients", "inverse")
"""What a block need not promise whose forward runs once, with its graph, and which remembers nothing outside its buffers."""
_SAMPLES = 2
"""The samples in a micro-batch of a block's trial."""
_TARGETS, _LARGE = 8, 2**16
"""The targets of a loss's trial; where outputs have more values than `_LARGE`, it has two."""


@frozen(kw_only=True)
class SelfCheck:
    """The plugins of a run, tried before it trains."""

    checked: CheckedSpec
    network: MeasuredNetwork
    opened: OpenedData
    training: Training
    stages: Sequence[StageFacts]
    """What plugins may know of each stage."""
    kept: Collection[str] = ()
    """The nodes whose forward keeps its graph."""
    reporter: StartReporter
    _doubts: list[str] = field(factory=list, init=False)
    _streams: dict[str, Streams] = field(factory=dict, init=False)

    def run(self) -> Sequence[str]:
        """Try all plugins that are not the first party's, and return warnings of what may be meant.

        Raises:
            PluginError: a plugin breaks its promises: all of them, each with what was found and what to do; or the data set
                raised, or returned what it does not declare.
        """
        with _generators_as_they_were():
            problems = [*self._blocks(), *self._optimizer(), *self._lr_schedule(), *self._added()]
            _raise_any(problems)
            loss, data_set = self.checked.loss.plugin, self.checked.data.plugin
            targets = of_micro_batch = None
            try:
                with self._step(data_set.owned):
                    ours = loss.is_first_party and all(one.plugin.is_first_party for one in self.checked.metrics)
                    if not (data_set.is_first_party and loss.is_first_party):
                        of_micro_batch = self._fetched()
                    problems += self._data_set()
                    if not ours:
                        targets = self._targets_for_loss()
            except RunFailed as error:
                raise PluginError([evolve(one, path=("data", "name")) for one in error.problems]) from error
            _raise_any(problems)
            with self._step(loss.owned):
                if targets is None or loss.is_first_party:
                    trial = self._loss_trial(self._compare_zeros())
                    _raise_any([_problem(loss, one, ("loss",)) for one in self._broken(trial, "logits")])
                elif self._several:
                    for outputs in self._returned(
                        len(main(targets))
                    ):  # what the loss is called with in training, and in evaluation
                        _raise_any(list(self._loss(targets, outputs=outputs)))
                else:
                    _raise_any(list(self._loss(targets, of_micro_batch)))
            self._metrics(targets)
        return self._doubts

    def _step(self, what: str) -> AbstractContextManager[None]:
        return self.reporter.step(f"trying {what}", self.network.spec.run.watchdog)

    def _blocks(self) -> Iterator[Problem]:
        network = self.network
        memo = Memo[Sequence[Outcome]]()
        found: list[tuple[Node, Sequence[Outcome], list[str]]] = []
        for name in network.graph.order:
            node = network.graph.nodes[name]
            if node.plugin is None or node.plugin.is_first_party:
                continue
            inputs, dtypes, _ = self._read(node)
            runs_once = node.kind == "head" or name in self.kept
            key = (node.plugin, node.options, node.kind, inputs, dtypes, runs_once)
            with self._step(f'node "{name}" ({node.plugin.owned})'):
                broken = memo.get(key, partial(self._broken_by_block, node, runs_once=runs_once))
            alike = next((nodes for _, outcomes, nodes in found if outcomes is broken), None)
            if alike is not None:
                alike.append(name)
            elif broken:
                found.append((node, broken, [name]))
        for node, broken, nodes in found:
            assert node.plugin is not None
            cause, *others = sorted(broken, key=_cause)
            more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
            names = [other.promise for other in others]
            yield _problem(node.plugin, cause, node.path, names, node=f'node "{nodes[0]}"{more}: ')

    def _broken_by_block(self, node: Node, *, runs_once: bool) -> Sequence[Outcome]:
        trial = self._trial(node)
        if looks_sound(trial):
            return ()
        broken = examine(trial, when="before_run").broken
        if broken and runs_once and remembers_in_buffers(trial):
            broken = tuple(one for one in broken if one.promise not in _OF_OTHER_EVALUATIONS)
        if not broken or _is_finite(trial):
            return broken
        self._doubts.append(
            f'node "{node.name}" has not been tried: what it computes of streams that were drawn for it is not finite; if it is of '
            "those that it reads, run.self_check = false leaves out the check"
        )
        return ()

    def _trial(self, node: Node) -> Trial:
        assert node.plugin is not None
        inputs, dtypes, sources = self._read(node)
        streams, precision = iter(range(10**9)), self.network.spec.precision

        def draw(shape: Shape, generator: torch.Generator) -> Tensor:
            at = next(streams) % len(inputs)
            (producer, place), dtype = sources[at], dtypes[at]
            if producer == INPUT:
                return self._real_samples()[: shape[0]]
            if dtype.is_floating_point:
                return normal(shape, generator)
            real = self._real_streams(producer)
            return torch.randint(2, shape, generator=generator).to(dtype) if real is None else real[place][: shape[0]]

        return Trial(
            block_class=cast(type[Block], load(node.plugin)),
            declaration=cast(BlockDeclaration, node.plugin.declaration),
            inputs=tuple(inputs),
            options=node.options,
            batch=_SAMPLES,
            draw=draw,
            compute="float64" if precision.compute == "float64" else "float32",
            memory_format=precision.memory_format,
        )

    def _read(self, node: Node) -> tuple[Sequence[Shape], Sequence[torch.dtype], Sequence[tuple[str, int]]]:
        """Return shape, type and source of the streams that a node's own block reads, whatever `[conversion]` puts around it."""
        samples = torch.int64 if self.opened.data.facts.dtype == "int64" else torch.float32
        shapes = self.network.shapes
        of_producer = [(one, (samples,) if one == INPUT else shapes[one].dtypes) for one in node.inputs]
        every = [(dtype, (one, at)) for one, dtypes in of_producer for at, dtype in enumerate(dtypes)]
        inputs = shapes[node.name].inputs
        reads = range(len(inputs)) if node.conversion is None else node.conversion.reads
        dtypes, sources = zip(*(every[at] for at in reads), strict=True)
        return tuple(inputs[at] for at in reads), dtypes, sources

    def _real_samples(self) -> Tensor:
        """Return samples of the training data, images as a stem reads them before their normalisation."""
        samples, _ = self.opened.data.train.fetch(np.arange(_SAMPLES), seed=0, epoch=0)
        return samples / 255 if samples.dtype == torch.uint8 else samples

    def _real_streams(self, producer: str) -> Streams | None:
        """Return what a node gives for such samples; None where the network cannot be run.

        A random mask could pass over all tokens of a sample.
        """
        if producer not in self._streams:
            graph, numerics = self.network.graph, self._numerics()
            samples, _ = self.opened.data.train.fetch(np.arange(_SAMPLES), seed=0, epoch=0)
            among = nx.ancestors(graph.digraph, producer) | {producer}
            with suppress(Exception):  # of a block that is broken, which its own trial says
                self._streams.update(streams_of_samples(graph, samples, numerics, among=among))
        return self._streams.get(producer)

    def _numerics(self) -> NumericsContext:
        return NumericsContext(
            device=torch.device("cpu"),
            precision=self.network.spec.precision,
            seed=self.network.spec.run.seed,
            normalisation=Normalisation.of(self.opened.data.facts),
        )

    def _optimizer(self) -> Iterator[Problem]:
        plugin = self.checked.optimizer.plugin
        if plugin.is_first_party:
            return
        with self._step(plugin.owned):
            trial = OptimizerTrial(plugin=plugin, options=self.checked.optimizer.options)
            found = examine(trial, when="before_run").broken
        for outcome in found:
            problem = _problem(plugin, outcome, ("optimizer", "name"))
            yield evolve(problem, message=outcome.found) if outcome.found.startswith(plugin.owned) else problem

    def _lr_schedule(self) -> Sequence[Problem]:
        plugin, horizon = self.checked.lr_schedule.plugin, self.opened.horizon
        if plugin.is_first_party:
            return ()
        options = self.checked.lr_schedule.options
        full = learning_rate(self.checked.spec, self.checked.optimizer.options.lr, lambda _: 1.0, horizon)
        trial = LrScheduleTrial(
            plugin=plugin,
            options=options,
            horizons=[horizon],
            stages=tuple(dict.fromkeys((self.stages[-1], self.stages[0]))),
            of_run=self.training.rate,
            full=full,
        )
        try:
            with self._step(plugin.owned), at_path("lr_schedule", "name"):
                found = next(filter(None, ([*self._broken(case)] for case in trial.cases)), [])
                return [_problem(plugin, broken, ("lr_schedule", "name")) for broken in found]
        except PluginError as error:
            return error.problems

    def _added(self) -> Iterator[Problem]:
        """Ask the plugins of added kinds in the first of their likely trials."""
        for one in chain(*self.checked.added.values()):
            with self._step(one.plugin.owned):
                trial, *_ = one.plugin.kind.trials_of(one.plugin, one.options)
                report = examine(trial, when="before_run")
                for outcome in report.broken:
                    yield _problem(one.plugin, outcome, (*one.path[:-1], "name"))
                self._doubts.extend(_doubt(one.plugin, outcome) for outcome in report.doubtful)

    def _data_set(self) -> Iterator[Problem]:
        """Yield the problem, if any, that samples of a split depend on more than their indices, the seed and the epoch."""
        data, plugin = self.opened.data, self.checked.data.plugin
        if plugin.is_first_party:
            return
        trial = DataSetTrial(plugin=plugin, options=self.checked.data.options, of_run=data)
        for _, split, indices in trial.splits:
            cast(CheckedSplit, split).require_finite(indices, seed=0, epoch=0)
        if found := list(self._broken(trial)):  # the first explains the others
            others = dict.fromkeys(one.promise for one in found if one.promise != found[0].promise)
            yield _problem(plugin, found[0], ("data", "name"), list(others))

    @property
    def _several(self) -> bool:
        """Whether the loss is given several outputs or targets, or one in a structure."""
        return self.network.shapes[self.network.graph.head].several or self.opened.data.facts.several_targets

    def _returned(self, count: int) -> tuple[Tree, Tree]:
        """Return what the network returns in training, and in evaluation, for the test samples of as many targets."""
        numerics = self._numerics()
        samples, _ = self.opened.data.test.fetch(self._spread(count), seed=0, epoch=0)
        graph = self.network.graph
        before = streams_of_samples(graph, samples, numerics, among=set(graph.order) - {graph.head})
        inputs = tuple(stream for producer in graph.nodes[graph.head].inputs for stream in before[producer])
        head = place(
            initial_block(graph.nodes[graph.head], [tuple(one.shape[1:]) for one in inputs], numerics.seed), numerics
        )
        runner = HeadRunner({graph.head: head}, numerics, reads_samples=False, loss=self.training.loss)

        def of(*, train: bool) -> Tree:
            head.train(train)
            with torch.no_grad(), runner.frozen:
                return runner.returned(runner.run(0 if train else None, inputs))

        return of(train=True), of(train=False)

    def _loss(self, targets: Tree, of_micro_batch: Tensor | None = None, outputs: Tree = None) -> Iterator[Problem]:
        plugin = self.checked.loss.plugin
        with at_path("loss", "name"):
            found = list(self._broken(self._loss_trial(targets, of_micro_batch, outputs)))
        explaining = [broken for broken in found if broken.promise == "untouched"]
        for broken in explaining or found:
            yield _problem(plugin, broken, ("loss", "name"))

    def _loss_trial(self, targets: Tree, of_micro_batch: Tensor | None = None, outputs: Tree = None) -> LossTrial:
        head = self.network.graph.nodes[self.network.graph.head]
        own = head.plugin is None or head.plugin.is_first_party
        return LossTrial(
            plugin=self.checked.loss.plugin,
            options=self.checked.loss.options,
            output=self._output,
            of_run=(self.training.loss, targets),
            outputs=outputs,
            micro_batch=of_micro_batch,
            head=None if own or self._several else partial(self._outputs_of, head),
        )

    def _outputs_of(self, head: Node) -> Tensor:
        harness = Harness(self._trial(head), "float32")
        return harness.peek(0, harness.inputs(0))[0]

    def _metrics(self, targets: Tree | None) -> None:
        """Try all metrics, and look for that of `checkpoint.best` among what an evaluation records.

        Raises:
            PluginError: a metric that is not the first party's breaks a promise.
            SpecError: a metric cannot compare the head's outputs with such targets, has a name that the loss has, or `best` has none.
        """
        for one in self.checked.metrics:
            if targets is not None and not one.plugin.is_first_party and not self.opened.data.facts.several_targets:
                path = (*one.path[:-1], "name")
                trial = MetricTrial(plugin=one.plugin, options=one.options, output=self._output, of_run=targets)
                with self._step(one.plugin.owned), at_path(*path):  # the first broken promise explains the others
                    _raise_any([_problem(one.plugin, broken, path) for broken in self._broken(trial)][:1])
        best = self.checked.spec.checkpoint.best
        if best is None and not self.checked.metrics:
            return
        targets = self._zeros() if targets is None else targets
        outputs, metrics = (
            outputs_for(self._output, main(targets)).detach(),
            MetricsOfEvaluation.of(self.checked.metrics),
        )
        returned = self._returned(len(outputs))[1] if self._several else outputs
        of_loss = ["loss", *self.training.loss.metrics(returned, targets)]
        try:
            metrics.update(outputs, targets)
        except PluginError as error:  # of the first party's; others have been tried
            (problem,) = error.problems
            reason = problem.message.rpartition("Error: ")[2]
            message = f"the metric cannot compare the head's outputs with the data set's targets: {reason}"
            hint = "leave out the metric, or change the head or the data set"
            raise SpecError(evolve(problem, message=message, hint=hint)) from error
        recorded = [f"test/{name}" for name in (*of_loss, *metrics.values(of_loss))]
        if best is not None and best not in recorded:
            message = f"checkpoint.best = {shown(best)} is not a metric of an evaluation of this run"
            raise SpecError(Problem(message=message, hint=suggestion(best, recorded), path=("checkpoint", "best")))

    def _fetched(self) -> Tree:
        """Fetch a micro-batch of each split, and return the test targets."""
        data, rows = self.opened.data, self.network.spec.data.batch
        for split in (data.train, data.test):
            indices = np.arange(min(rows, len(split)))
            split.require_finite(indices, seed=0, epoch=0)
        return _targets_of(data.test, indices)

    def _targets_for_loss(self) -> Tree:
        """Fetch the targets that a loss is tried with: spread over the test data, whose order may be that of classes.

        Those that losses pass over (-100) are given a class: a sample may not have another target.
        """
        data = self.opened.data
        targets = _targets_of(data.test, self._spread(_TARGETS if prod(self._output) <= _LARGE else 2))
        return targets if data.facts.classes is None else targets.clamp(min=0)

    def _spread(self, count: int) -> NDArray[np.intp]:
        samples = len(self.opened.data.test)
        return np.unique(np.linspace(0, samples - 1, min(count, samples)).astype(np.intp))

    @property
    def _output(self) -> Shape:
        return self.network.shapes[self.network.graph.head].outputs[0]

    def _broken(self, trial: PluginTrial, only: str = "") -> Iterator[BrokenPromise]:
        """Ask a plugin's promises in a trial of the run's own, or only one, and yield those that it breaks; its errors are not caught."""
        for promise in trial.kind.asked("before_run"):
            if only not in {"", promise.name}:
                continue
            try:
                promise.function(trial)
            except BrokenPromise as broken:
                if promise.doubt:
                    self._doubts.append(_doubt(trial.plugin, broken))
                else:
                    yield broken

    def _zeros(self) -> Tree:
        return zero_targets(self.opened.data.facts, _SAMPLES)

    def _compare_zeros(self) -> Tree:
        """Call a loss of the first party's on zeros of the shapes that it will get, and return the targets.

        Raises:
            SpecError: it cannot compare the head's outputs with such targets.
        """
        facts, shape, targets = self.opened.data.facts, self._output, self._zeros()
        try:
            self.training.loss(torch.zeros(_SAMPLES, *shape), targets)
        except PluginError as error:
            head = self.network.graph.nodes[self.network.graph.head]
            outputs, of_data = (list(one) or "one number" for one in (shape, facts.target_shape))
            reason = error.problems[0].message.rpartition("Error: ")[2]
            problem = Problem(
                message=f'the head "{head.name}" has outputs {outputs} a sample, and the data set targets {of_data}: {reason}',
                hint=f"change the head or its options, or {self.checked.loss.plugin}",
                path=head.path,
            )
            raise SpecError(problem) from error
        return targets


def _is_finite(trial: Trial) -> bool:
    """Whether a block's outputs are finite, in training and in evaluation; what raises is examined."""
    try:
        harness = Harness(trial, "float32")
        inputs = harness.inputs(0)
        trained = harness.peek(0, inputs)
        whole, rows = batch_and_rows(harness.block.eval(), inputs)
        return all(bool(one.isfinite().all()) for one in (*trained, *whole, *rows))
    except Exception:  # noqa: BLE001
        return True


def _doubt(plugin: Plugin, broken: Outcome | BrokenPromise) -> str:
    return f"{plugin.owned} ({broken.promise}): {broken.found}; unless that is meant, {broken.remedy}"


def _problem(
    plugin: Plugin, broken: Outcome | BrokenPromise, path: Path, others: Sequence[str] = (), node: str = ""
) -> Problem:
    more = f" (and with it: {', '.join(others)})" if others else ""
    message = f"{node}{plugin.owned} breaks a promise ({broken.promise}): {broken.found}{more}"
    return Problem(message=message, hint=broken.remedy or remedy(plugin.distribution), path=path)


def _cause(outcome: Outcome) -> int:
    """Return an outcome's place in the order of causes."""
    return _CAUSES.index("state" if IN_A_FORWARD in outcome.found else outcome.promise)


def _targets_of(split: CheckedSplit, indices: NDArray[np.intp]) -> Tree:
    """Fetch targets, without their samples where the split can."""
    alone = split.fetch_targets
    return split.fetch(indices, seed=0, epoch=0)[1] if alone is None else alone(indices)


def _raise_any(problems: Sequence[Problem]) -> None:
    if problems:
        raise PluginError(problems)


@contextmanager
def _generators_as_they_were() -> Iterator[None]:
    threads = torch.get_num_threads()
    with as_they_were():
        try:
            yield
        finally:
            torch.set_num_threads(threads)
