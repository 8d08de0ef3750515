"""Epochs: train, drain, evaluate, record."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import closing

from attrs import frozen

from petra_graph.executor.segment_runners import HeadResult
from petra_graph.fidelity.probe import Probe, spread
from petra_graph.record.fidelity import Fidelity
from petra_graph.record.listener import EpochEnded, Listener
from petra_graph.record.metrics import Metrics
from petra_graph.runtime.scheduler.scheduler import Observer, Scheduler
from petra_graph.training.diagnose import evaluation_not_finite, loss_not_finite
from petra_graph.training.meters import Meters
from petra_graph.training.prepare import Prepared


@frozen(kw_only=True)
class Reached:
    """How far a training came."""

    epochs: int = 0
    micro_batches: int = 0
    updates: int = 0
    train: Mapping[str, float] | None = None
    test: Mapping[str, float] | None = None
    seconds: float = 0.0
    """Spent in training, evaluations left out."""


class Trainer:
    """Trains a prepared run in the process that hosts the head; `epochs` holds what was reached, also after an interruption."""

    def __init__(self, prepared: Prepared, runtime: Scheduler, metrics: Metrics, listener: Listener) -> None:
        self.prepared = prepared
        self.runtime = runtime
        self.metrics = metrics
        self.listener = listener
        self.epochs: list[EpochEnded] = []
        self.micro_batches = 0
        """Seen by the head since the run's start."""
        self.seconds = 0.0
        """Spent in training, evaluations left out."""
        self.train: Mapping[str, float] | None = None
        """Means over the latest epoch that was trained to its end."""
        self.join: Callable[[int, Meters], None] = lambda _epoch, _meters: None
        """Adds what other replicas' heads saw in an epoch."""
        self.probe = None if prepared.spec.probe is None else Probe(runtime.executors, self._probed)

    @property
    def updates(self) -> int:
        """Updates that the head's stage has made."""
        return self.runtime.executors[-1].updater.updates

    @property
    def reached(self) -> Reached:
        """How far the training came."""
        tests = [report.test for report in self.epochs if report.test]
        return Reached(
            epochs=len(self.epochs),
            micro_batches=self.micro_batches,
            updates=self.updates,
            train=self.train,
            test=tests[-1] if tests else None,
            seconds=self.seconds,
        )

    def run(self) -> None:
        """Train all epochs.

        Raises:
            Interrupted: somebody asked to stop.
            RunFailed: a stage failed, or a loss was not finite.
        """
        spec = self.prepared.spec
        for epoch in range(1, spec.run.epochs + 1):
            seconds, done = self.seconds, self.micro_batches
            self.train = self._train(epoch)
            test = self._evaluate(epoch) if evaluation_due(self.prepared, epoch) else None
            report = EpochEnded(
                epoch=epoch,
                train=self.train,
                test=test,
                samples_per_second=(self.micro_batches - done) * self._samples / (self.seconds - seconds),
                learning_rate=self._learning_rate(),
            )
            self.epochs.append(report)
            self._record(report)
            self.listener.epoch_ended(report)

    def _train(self, epoch: int) -> Mapping[str, float]:
        batches = self.prepared.training_batches(epoch - 1)
        first, every = (epoch - 1) * len(batches), self.prepared.spec.run.log_every
        meters = Meters()

        def observe(result: HeadResult) -> None:
            if not math.isfinite(float(result.loss)):
                raise loss_not_finite(self.runtime.executors, result, epoch)
            meters.add(result)
            self.micro_batches += 1
            done = self.micro_batches - first
            if done % every == 0:
                step = {"train/micro_batch_loss": float(result.loss), "train/learning_rate": self._learning_rate()}
                self.metrics.record(epoch=epoch, step=self.micro_batches, values=step)
            self.listener.trained(epoch, done, meters.means())

        micro_batches = range(first, first + len(batches))
        if self.probe is not None and self.prepared.spec.probe is not None:
            self.probe.begin(micro_batches, spread(micro_batches, self.prepared.spec.probe.per_epoch))
        # What ends the training holds on to this frame; without closing, loader processes would live as long.
        began = time.perf_counter()
        try:
            with closing(iter(batches)) as source:
                self.runtime.train(source, micro_batches, observe)
        finally:
            self.seconds += time.perf_counter() - began
        self.join(epoch, meters)
        return meters.means()

    @property
    def _samples(self) -> int:
        """In a micro-batch, of all replicas."""
        return self.prepared.spec.data.batch * self.prepared.spec.partition.replicas

    def _probed(self, fidelity: Fidelity) -> None:
        """Record what a probe found; all backwards of an epoch are done before the next one."""
        epoch = len(self.epochs) + 1
        self.metrics.record(epoch=epoch, step=fidelity.micro_batch + 1, values=fidelity.values())

    def _evaluate(self, epoch: int) -> Mapping[str, float]:
        self.listener.evaluating(epoch)
        meters = Meters()
        for result in self.runtime.evaluate(self.prepared.test_batches()):
            meters.add(result)
        means = meters.means()
        if not math.isfinite(means.get("loss", 0.0)):
            raise evaluation_not_finite(self.runtime.executors, means["loss"], epoch)
        return means

    def _learning_rate(self) -> float:
        """Return the rate of the head's latest update."""
        return self.prepared.training.rate(max(0, self.updates - 1))

    def _record(self, report: EpochEnded) -> None:
        values = {f"train/{name}": value for name, value in report.train.items()}
        values |= {f"test/{name}": value for name, value in (report.test or {}).items()}
        values |= {"samples_per_second": report.samples_per_second, "learning_rate": report.learning_rate}
        self.metrics.record(epoch=report.epoch, step=self.micro_batches, values=values)


def follow(prepared: Prepared, runtime: Scheduler, ended: Callable[[int, Meters], None]) -> None:
    """Train all epochs in a process that does not host the first replica's head: the `Trainer` there says what comes of it.

    Args:
        prepared: the run.
        runtime: this process's stages.
        ended: told of each epoch that has ended, and what was seen of it here: nothing where there is no head.

    Raises:
        Interrupted, RunFailed: as `Trainer.run`.
    """
    for epoch in range(1, prepared.spec.run.epochs + 1):
        batches = prepared.training_batches(epoch - 1)
        first = (epoch - 1) * len(batches)
        meters = Meters()
        with closing(iter(batches)) as source:
            runtime.train(source, range(first, first + len(batches)), _observer(runtime, meters, epoch))
        ended(epoch, meters)
        if evaluation_due(prepared, epoch) and prepared.replica == 0:
            for result in runtime.evaluate(prepared.test_batches()):
                _unseen(result)


def _observer(runtime: Scheduler, meters: Meters, epoch: int) -> Observer:
    """Return what looks at the losses of another replica's head."""

    def observe(result: HeadResult) -> None:
        if not math.isfinite(float(result.loss)):
            raise loss_not_finite(runtime.executors, result, epoch)
        meters.add(result)

    return observe


def evaluation_due(prepared: Prepared, epoch: int) -> bool:
    """Whether an evaluation follows an epoch, counted from 1."""
    return epoch % prepared.spec.run.evaluate_every == 0 or epoch == prepared.spec.run.epochs


def _unseen(result: HeadResult) -> None:
    raise AssertionError(result)
