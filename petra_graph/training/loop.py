"""The training loop: each epoch trains, drains, evaluates and records."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing

from attrs import define, field, frozen

from petra_graph.errors import Interrupted
from petra_graph.executor.reconstruct_recompute_stash import HeadResult
from petra_graph.executor.stage import StageExecutor
from petra_graph.fidelity.probe import Probe, spread
from petra_graph.record.listener import EpochEnded, Listener
from petra_graph.record.metrics import Metrics
from petra_graph.runtime.scheduler.scheduler import Scheduler
from petra_graph.training.diagnose import NotFinite
from petra_graph.training.meters import Meters
from petra_graph.training.prepare import Prepared


@frozen(kw_only=True)
class Progress:
    """How far a training came."""

    epochs: int = 0
    micro_batches: int = 0
    updates: int = 0
    train: Mapping[str, float] | None = None
    test: Mapping[str, float] | None = None
    seconds: float = 0.0
    """Spent in training, evaluations left out."""


class Peers:
    """The other processes of the run: none."""

    def exchange_meters(self, epoch: int, meters: Meters) -> None:
        """Merge the meters of other replicas' heads, or send this process's own."""

    def publish(self, progress: Progress) -> None:
        """Publish how far the training came, in case this process is killed."""


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
    epochs: list[EpochEnded] = field(factory=list, init=False)
    """The reports of all finished epochs, also after an interruption."""
    micro_batches: int = field(default=0, init=False)
    """Seen by the head since the run's start."""
    seconds: float = field(default=0.0, init=False)
    """Spent in training, evaluations left out."""
    train: Mapping[str, float] | None = field(default=None, init=False)
    """Means over the latest epoch that was trained to its end."""
    probe: Probe | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        if self.prepared.spec.probe is not None:
            self.probe = Probe(self.executors, self._record_fidelity)

    @property
    def executors(self) -> Sequence[StageExecutor]:
        """The stages of this process."""
        return self.scheduler.executors

    @property
    def updates(self) -> int:
        """Updates of the last stage in this process."""
        return self.executors[-1].updater.updates

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

    def run(self) -> Interrupted | None:
        """Train all epochs; return the interruption that ended them, if a request to stop has arrived.

        Raises:
            RunFailed: a stage failed, or a loss was not finite.
        """
        try:
            for epoch in range(1, self.prepared.spec.run.epochs + 1):
                self._run_epoch(epoch)
        except Interrupted as request:
            return request
        finally:
            self.listener.stopped()
        return None

    def _run_epoch(self, epoch: int) -> None:
        seconds, done = self.seconds, self.micro_batches
        self.train = self._train(epoch)
        test = self._evaluate(epoch) if self._evaluation_due(epoch) else None
        samples = (self.micro_batches - done) * self.prepared.batches.whole
        report = EpochEnded(
            epoch=epoch,
            train=self.train,
            test=test,
            samples_per_second=samples / (self.seconds - seconds),
            learning_rate=self._learning_rate(),
        )
        self.epochs.append(report)
        values = {f"train/{name}": value for name, value in report.train.items()}
        values |= {f"test/{name}": value for name, value in (report.test or {}).items()}
        values |= {"samples_per_second": report.samples_per_second, "learning_rate": report.learning_rate}
        self._record(epoch, self.micro_batches, values)
        self.peers.publish(self.progress)
        self.listener.epoch_ended(report)

    def _train(self, epoch: int) -> Mapping[str, float]:
        batches = self.prepared.training_batches(epoch - 1)
        first, every = (epoch - 1) * len(batches), self.prepared.spec.run.log_every
        meters = Meters()

        def observe(result: HeadResult) -> None:
            if not math.isfinite(float(result.loss)):
                raise NotFinite(self.executors, result, epoch)
            meters.add(result)
            self.micro_batches += 1
            done = self.micro_batches - first
            if done % every == 0:
                step = {"train/micro_batch_loss": float(result.loss), "train/learning_rate": self._learning_rate()}
                self._record(epoch, self.micro_batches, step)
            self.listener.trained(epoch, done, meters.means())

        micro_batches = range(first, first + len(batches))
        if self.probe is not None and self.prepared.spec.probe is not None:
            self.probe.begin(micro_batches, spread(micro_batches, self.prepared.spec.probe.per_epoch))
        # An exception that ends the training refers to this frame: without closing, loader processes would live as long.
        began = time.perf_counter()
        try:
            with closing(iter(batches)) as source:
                self.scheduler.train(source, micro_batches, observe)
        finally:
            self.seconds += time.perf_counter() - began
        self.peers.exchange_meters(epoch, meters)
        return meters.means()

    def _evaluation_due(self, epoch: int) -> bool:
        """Whether an evaluation follows an epoch, counted from 1; the first replica evaluates alone."""
        run = self.prepared.spec.run
        return self.prepared.batches.replica == 0 and (epoch % run.evaluate_every == 0 or epoch == run.epochs)

    def _evaluate(self, epoch: int) -> Mapping[str, float]:
        self.listener.evaluating(epoch)
        meters = Meters()
        for result in self.scheduler.evaluate(self.prepared.test_batches()):
            meters.add(result)
        means = meters.means()
        if not math.isfinite(means.get("loss", 0.0)):
            raise NotFinite(self.executors, means["loss"], epoch)
        return means

    def _learning_rate(self) -> float:
        """Return the learning rate of the latest update."""
        return self.prepared.training.rate(max(0, self.updates - 1))

    def _record_fidelity(self, micro_batch: int, values: Mapping[str, float]) -> None:
        """Record the result of a probe; all backwards of an epoch are done before the next epoch."""
        self._record(len(self.epochs) + 1, micro_batch + 1, values)

    def _record(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        if self.metrics is not None:
            self.metrics.record(epoch=epoch, step=step, values=values)
