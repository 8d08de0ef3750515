"""The training loop: each epoch trains, drains, evaluates and records."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from typing import Any

from attrs import Factory, asdict, define, evolve, field
from torch import Tensor

from petra_graph.errors import Interrupted, RunFailed
from petra_graph.executor.deferred_reads import MOST
from petra_graph.executor.reconstruct_recompute_stash import HeadResult
from petra_graph.executor.stage import StageExecutor
from petra_graph.fidelity.probe import Probe, spread
from petra_graph.record.metrics import Metrics
from petra_graph.record.weights import weights_of
from petra_graph.registry.listener import EpochEnded, Listener
from petra_graph.runtime.scheduler.scheduler import Scheduler
from petra_graph.training.checked_data import require_finite_samples
from petra_graph.training.loop.callbacks import Callbacks
from petra_graph.training.loop.meters import Meters
from petra_graph.training.loop.not_finite import NotFinite
from petra_graph.training.loop.run_warnings import RunWarnings
from petra_graph.training.prepared_run import Prepared
from petra_graph.training.processes.run_process import Peers, Progress


@define(eq=False)
class Trainer:
    """Trains the stages of one process; where the head is not there, nothing is observed."""

    prepared: Prepared
    scheduler: Scheduler
    """Of this process's stages."""
    metrics: Metrics | None
    """None in a process that does not record."""
    listener: Listener
    peers: Peers
    callbacks: Callbacks = field(factory=Callbacks)
    epochs: list[EpochEnded] = field(factory=list, init=False)
    """The reports of all finished epochs, also after an interruption."""
    micro_batches: int = field(default=0, init=False)
    """Seen by the head since the run's start."""
    seconds: float = field(default=0.0, init=False)
    """Spent in training, evaluations left out."""
    _seconds_before: float = field(default=0.0, init=False)
    """Of these, those before this process went on with the run."""
    train: Mapping[str, float] | None = field(default=None, init=False)
    """Means over the latest epoch that was trained to its end."""
    since: int = field(default=0, init=False)
    """The latest forward at which the pipeline filled anew within an epoch, as the micro-batches in flight were discarded."""
    resumed_from: list[int] = field(factory=list, init=False)
    """The forwards behind the checkpoints that the run has gone on from."""
    stopped_early: str | None = field(default=None, init=False)
    """After which epoch, and why."""
    meters: Meters = field(default=Factory(lambda self: self.new_meters(), takes_self=True), init=False)
    """Of the epoch under way."""
    probe: Probe | None = field(default=None, init=False)
    warnings: RunWarnings = field(
        default=Factory(lambda self: RunWarnings(self.peers, lambda: self.observers), takes_self=True), init=False
    )
    _epoch: int = field(default=1, init=False)
    """Under way, or the next one."""
    _evaluates: bool = field(default=False, init=False)
    """The epoch has been trained, and its evaluation is under way."""
    _resumes_at: int | None = field(default=None, init=False)
    """The forward with which the training goes on."""
    _epoch_began: tuple[float, int] = field(default=(0.0, 0), init=False)
    """Seconds and micro-batches before the epoch."""
    _began: float | None = field(default=None, init=False)
    """On this process's clock; None while nothing is trained."""

    def __attrs_post_init__(self) -> None:
        if self.prepared.spec.probe is not None:
            self.probe = Probe(self.executors, self._record_fidelity)
        for executor in self.executors:
            if (observed := executor.updater.first_steps) is not None:
                observed.warn = self.warnings.say

    def new_meters(self) -> Meters:
        """Return meters without a batch."""
        return Meters(self.prepared.checked.loss.plugin.owned)

    @property
    def executors(self) -> Sequence[StageExecutor]:
        """The stages of this process."""
        return self.scheduler.executors

    @property
    def observers(self) -> Sequence[Listener]:
        """The callbacks, then the listener, of the process that records; none in another one."""
        return () if self.metrics is None else (self.callbacks, self.listener)

    @property
    def updates(self) -> int:
        """Updates of the last stage in this process."""
        return self.executors[-1].updater.updates

    @property
    def seconds_here(self) -> float:
        """Seconds that this process has trained."""
        return self.seconds - self._seconds_before

    @property
    def trained_epochs(self) -> int:
        """The epochs that have been trained; the latest one may not have been evaluated."""
        return self._epoch - 1 + self._evaluates

    @property
    def progress(self) -> Progress:
        """How far the training came."""
        tests = [report.test for report in self.epochs if report.test]
        return Progress(
            epochs=len(self.epochs),
            micro_batches=self.micro_batches,
            updates=self.updates,
            train=self.train,
            test=tests[-1] if tests else None,
            seconds=self.seconds,
        )

    def position(self, at: int) -> dict[str, Any]:
        """Return where the training is at the cut before forward `at`, as JSON; called where the head's stage comes there."""
        elapsed = 0.0 if self._began is None else time.perf_counter() - self._began
        return {
            "epoch": self._epoch,
            "evaluates": self._evaluates,
            "micro_batches_per_epoch": len(self.prepared.batches),
            "micro_batches": at,
            "since": self.since,
            "updates": self.updates,
            "seconds": self.seconds + elapsed,
            "epoch_began": list(self._epoch_began),
            "train": self.train,
            "resumed_from": self.resumed_from,
            "epochs": [asdict(report) for report in self.epochs],
            "metrics_bytes": 0 if self.metrics is None else self.metrics.bytes,
            "callbacks": self.callbacks.states(),
        }

    def go_on(self, position: Mapping[str, Any], meters: Mapping[str, Any] | None, *, discards: bool) -> None:
        """Let the training go on from a position.

        Args:
            position: as `position` returned it.
            meters: sums of this process's head in the epoch so far; None where it has none.
            discards: the micro-batches in flight at the cut are not there: the pipeline fills anew.
        """
        self._epoch, self._evaluates = position["epoch"], position["evaluates"]
        self.micro_batches, self.seconds = position["micro_batches"], position["seconds"]
        self._seconds_before = self.seconds
        self._epoch_began = (position["epoch_began"][0], position["epoch_began"][1])
        self.train = position["train"]
        self.since = position["micro_batches"] if discards else position["since"]
        self.resumed_from = [*position["resumed_from"], position["micro_batches"]]
        self.callbacks.restore(position.get("callbacks", {}))
        self.epochs = [EpochEnded(**report) for report in position["epochs"]]
        if meters is not None:
            self.meters = Meters.of(meters, self.prepared.checked.loss.plugin.owned)
        within = self.micro_batches - (self._epoch - 1) * len(self.prepared.batches)
        if within and not self._evaluates:
            self._resumes_at = self.micro_batches

    def run(self) -> Interrupted | None:
        """Train all epochs; return the interruption that ended them, if a request to stop has arrived.

        Raises:
            RunFailed: a stage failed, or a loss was not finite.
        """
        interrupted, loaders = None, self.prepared.batches.loaders
        try:
            with nullcontext() if loaders is None else loaders.at_work():
                for epoch in range(self._epoch, self.prepared.spec.run.epochs + 1):
                    self._epoch = epoch
                    if self._ends_early():
                        break
                    self._run_epoch(epoch)
                    self._epoch = epoch + 1
        except Interrupted as request:
            interrupted = request
        except BaseException:
            with suppress(RunFailed):  # the error that ended the run is the first cause
                self.callbacks.stopped()
            raise
        finally:
            self.listener.stopped()
        self.callbacks.stopped()
        return interrupted

    def _ends_early(self) -> bool:
        """Whether a callback ends the training before the next epoch, as the process that records knows."""
        if not self.callbacks.may_stop:
            return False
        reason = self.peers.leaders(f"stops/{self._epoch}", self.callbacks.stops())
        if reason:
            self.stopped_early = f"after epoch {self._epoch - 1}: {reason}"
        return bool(reason)

    def _run_epoch(self, epoch: int) -> None:
        if not self._evaluates:
            if self._resumes_at is None:
                self._epoch_began = self.seconds, self.micro_batches
            self.train = self._train(epoch)
        assert self.train is not None
        self._evaluates = True
        test = self._evaluate(epoch) if self._evaluation_due(epoch) else None
        if test is not None and self.callbacks.read_weights:
            self.callbacks.evaluated_weights(epoch, self.peers.gather(f"weights/{epoch}", self.weights()))
        self._evaluates = False
        seconds, done = self._epoch_began
        samples = (self.micro_batches - done) * self.prepared.batches.whole
        report = EpochEnded(
            epoch=epoch,
            train=self.train,
            test=test,
            samples_per_second=samples / (self.seconds - seconds),
            learning_rate=self._learning_rate(),
        )
        self.epochs.append(report)
        self.meters = self.new_meters()
        values = {f"train/{name}": value for name, value in report.train.items()}
        values |= {f"test/{name}": value for name, value in (report.test or {}).items()}
        values |= {"samples_per_second": report.samples_per_second, "learning_rate": report.learning_rate}
        self._record(epoch, self.micro_batches, values)
        self.peers.publish(self.progress)
        self.warnings.collect()
        self.callbacks.epoch_ended(report)
        self.listener.epoch_ended(report)

    def _train(self, epoch: int) -> Mapping[str, float]:
        batches = self.prepared.training_batches(epoch - 1)
        first, every = (epoch - 1) * len(batches), self.prepared.spec.run.log_every
        at, self._resumes_at = self._resumes_at, None
        meters = self.meters

        interval, means = self.executors[-1].read_interval, meters.means()

        def observe(result: HeadResult) -> None:
            nonlocal means
            meters.add(result)
            done = self.micro_batches + 1 - first
            logged = done % every == 0
            if logged or done % interval == 0 or done == len(batches):
                loss = self.read_losses()
                means = meters.means()
            self.micro_batches += 1
            if logged:
                step = {"train/micro_batch_loss": loss, "train/learning_rate": self._learning_rate()}
                self._record(epoch, self.micro_batches, step)
            self.callbacks.trained(epoch, done, means)
            self.listener.trained(epoch, done, means)

        micro_batches = range(first, first + len(batches))
        if at is not None:
            batches = evolve(batches, first=at - first)
        if self.probe is not None and self.prepared.spec.probe is not None:
            chosen = spread(range(first, first + len(batches)), self.prepared.spec.probe.per_epoch)
            self.probe.begin(micro_batches, chosen, at, self.since)
        self._began = time.perf_counter()
        try:
            with closing(iter(batches)) as source:
                self.scheduler.train(source, micro_batches, observe, at, self.since)
        finally:
            self.seconds += time.perf_counter() - self._began
            self._began = None
        self.peers.exchange_meters(epoch, meters)
        meters.expect_targets("training data")
        return meters.means()

    def weights(self) -> Mapping[str, Tensor]:
        """Return the weights of this process's stages, by their names in the file of weights."""
        return weights_of(pair for one in self.executors for pair in one.modules.items())

    def read_losses(self) -> float:
        """Read the results that wait on the head's device, and return the latest loss; NaN where none waits.

        Raises:
            NotFinite: a loss is not finite; of several, the first one is reported.
            RunFailed: its samples or targets are not finite either.
        """
        loss = math.nan
        for result, loss in self.meters.read():
            if not math.isfinite(loss):
                batches = self.prepared.training_batches(self._epoch - 1)
                require_finite_samples(batches, [result.micro_batch - (self._epoch - 1) * len(batches)])
                raise NotFinite(self.executors, result, self._epoch)
        return loss

    def _evaluation_due(self, epoch: int) -> bool:
        """Whether an evaluation follows an epoch, counted from 1; the first replica evaluates alone."""
        run = self.prepared.spec.run
        return self.prepared.batches.replica == 0 and (epoch % run.evaluate_every == 0 or epoch == run.epochs)

    def _evaluate(self, epoch: int) -> Mapping[str, float]:
        self.callbacks.evaluating(epoch)
        self.listener.evaluating(epoch)
        meters = self.new_meters()
        for number, result in enumerate(self.scheduler.evaluate(self.prepared.test_batches()), start=1):
            meters.add(result)
            if number % MOST == 0:
                meters.read()
            if result.evaluated is not None:
                self.callbacks.evaluated(epoch, result.evaluated.outputs, result.evaluated.targets)
        meters.expect_targets("test data")
        means = meters.means()
        if not math.isfinite(means.get("loss", 0.0)):
            batches = self.prepared.test_batches()
            require_finite_samples(batches, range(len(batches)))
            raise NotFinite(self.executors, means["loss"], epoch)
        return means

    def _learning_rate(self) -> float:
        """Return the learning rate of the latest update."""
        return self.prepared.training.rate(max(0, self.updates - 1))

    def _record_fidelity(self, micro_batch: int, values: Mapping[str, float]) -> None:
        """Record the result of a probe; all backwards of an epoch are done before the next epoch."""
        self._record(len(self.epochs) + 1, micro_batch + 1, values)
        self.warnings.probed(values, self.prepared.programs)

    def _record(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        if self.metrics is not None:
            self.metrics.record(epoch=epoch, step=step, values=values)
