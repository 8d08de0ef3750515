"""The training loop: each epoch trains, drains, evaluates and records; and where a training is, which a checkpoint keeps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import asdict, define, evolve, field
from torch import Tensor

from petra_graph.errors import Interrupted, RunFailed, shown, suggestion
from petra_graph.executor.delayed_weights import evaluating
from petra_graph.executor.head import HeadResult
from petra_graph.executor.stage import StageExecutor
from petra_graph.plugins.callback import EpochEnded, Listener, Started
from petra_graph.record.checkpoint import best_cut, read_weights
from petra_graph.record.run_directory import Metrics
from petra_graph.record.weights import copy_weights, weights_of
from petra_graph.runtime.loop import Scheduler
from petra_graph.training.evaluation import Meters, loss_failed, measure
from petra_graph.training.prepare import NamedCallback, Prepared

if TYPE_CHECKING:
    from petra_graph.training.process import RunProcess


_FAR = 1e6  # a run fails if its loss grows to this many times the first one


def _reports(given: Iterable[EpochEnded | Mapping[str, Any]]) -> list[EpochEnded]:
    return [one if isinstance(one, EpochEnded) else EpochEnded(**one) for one in given]


@define(kw_only=True)
class TrainingPosition:
    """Where a training is; its fields, in their order, are the keys of a checkpoint's manifest."""

    epoch: int = 1  # the one under way, or the next one, counted from 1
    evaluates: bool = False  # whether the epoch has been trained, and its evaluation is under way
    micro_batches_per_epoch: int
    micro_batches: int = 0  # those that the head has seen since the run's start
    first_loss: float | None = None
    since: int = 0  # the latest forward at which the pipeline filled again within an epoch
    seconds: float = 0.0  # of training, without evaluations
    epoch_began: tuple[float, int] = field(default=(0.0, 0), converter=tuple)  # the seconds and micro-batches before
    train: Mapping[str, float] | None = None  # the means over the latest epoch that was trained to its end
    resumed_from: tuple[int, ...] = field(default=(), converter=tuple)  # the first forward after each such checkpoint
    epochs: list[EpochEnded] = field(default=(), converter=_reports)  # of all finished ones, also after an interruption
    metrics_bytes: int = 0  # the length of the metrics file after the events up to here
    callbacks: Mapping[str, Any] = field(factory=dict)  # their states, by name


@define(eq=False, kw_only=True)
class Trainer:
    """Trains the stages of one process; where the head is not there, nothing is observed."""

    prepared: Prepared
    scheduler: Scheduler
    metrics: Metrics | None  # None in a process that does not record
    listener: Listener
    process: RunProcess
    position: TrainingPosition
    meters: Meters  # of the epoch under way
    # What else the summary says: warnings, why the training stopped early, and of the test that ended the run.
    told: dict[str, Any] = field(factory=dict, init=False)
    # The callbacks that are called of the training: all of them in the process that records, in another one none.
    led: Sequence[NamedCallback] = field(init=False)
    # When the present stretch of training began, on this process's clock; None while nothing is trained.
    _began: float | None = field(default=None, init=False)
    _begin_probe: Callable[[range, int | None, int], None] | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.led = () if self.metrics is None else self.prepared.callbacks
        if self.prepared.probe is not None:
            # All backwards of an epoch are done before the next epoch.
            self._begin_probe = self.prepared.probe.observe_stages(
                self.executors, lambda m, values: self._record(len(self.position.epochs) + 1, m + 1, values)
            )

    @property
    def executors(self) -> Sequence[StageExecutor]:
        return self.scheduler.executors

    @property
    def learning_rate(self) -> float:
        """The learning rate of the head's latest update, whose delay is 0: by their delay, other stages may have other rates."""
        return self.executors[-1].updater.rate(max(0, self.executors[-1].updater.updates - 1))

    @property
    def seconds(self) -> float:
        """Seconds of training up to now, without evaluations."""
        return self.position.seconds + (0.0 if self._began is None else time.perf_counter() - self._began)

    def weights(self) -> Mapping[str, Tensor]:
        """Return the weights of this process's stages, by their names in the file of weights."""
        return weights_of(pair for one in self.executors for pair in one.modules.items())

    def summary(self) -> dict[str, Any]:
        """Return what the run's summary says of the training so far."""
        position = self.position
        evaluated = next((dict(one.evaluated) for one in reversed(position.epochs) if one.evaluated), None)
        return {
            "epochs": len(position.epochs),
            "micro_batches": position.micro_batches,
            "updates": self.executors[-1].updater.updates,
            "train": dict(position.train) if position.train else None,
            "test": None,
            self.prepared.spec.data.evaluated: evaluated,
            "seconds": {"training": round(position.seconds, 3)},
            "samples_per_second": round(position.epochs[-1].samples_per_second, 1) if position.epochs else None,
            "resumed_from": list(position.resumed_from),
            **self.told,
        }

    def position_at(self, at: int) -> dict[str, Any]:
        """Return where the training is at the cut before forward `at`, as JSON; called when the head's stage comes to that cut."""
        kept = {one.name: state for one in self.led if (state := one.state()) is not None}
        size = 0 if self.metrics is None else self.metrics.bytes
        return asdict(evolve(self.position, micro_batches=at, seconds=self.seconds, metrics_bytes=size, callbacks=kept))

    def tell(self, event: str, *given: Any) -> None:
        """Tell the listener of an event, and then the callbacks."""
        getattr(self.listener, event)(*given)
        for one in self.led:
            one.call(event, *given)

    def begin(self, run: Started) -> None:
        """Show observers the run; callbacks have their states of a checkpoint, and the values that are recorded from now on."""
        self.listener.started(run)
        for one in self.led:
            one.call("started", run)
            if self.metrics is not None:
                self.metrics.hand_to(one.call)
            if one.name in self.position.callbacks:
                one.call("restore", self.position.callbacks[one.name])

    def warn(self, text: str) -> None:
        """Say a warning of what the training shows without ending, unless it has been said."""
        if self.metrics is not None and text not in (said := self.told.setdefault("warnings", [])):
            said.append(text)
            self.tell("warned", text)

    def _record(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        if self.metrics is not None:
            self.metrics.record(epoch=epoch, step=step, values=values)

    def run(self) -> Interrupted | None:
        """Train all epochs; return the interruption that ended them, if a request to stop has arrived."""
        position, interrupted = self.position, None
        begun = position.micro_batches > (position.epoch - 1) * position.micro_batches_per_epoch
        # The forward with which a resumed epoch continues; None where it begins, or has been trained.
        at = position.micro_batches if begun and not position.evaluates else None
        try:
            with closing(self.prepared.opened.loaders):
                while position.epoch <= self.prepared.spec.run.epochs and not self._ends_early():
                    self._run_epoch(at)
                    position.epoch, at = position.epoch + 1, None
        except Interrupted as request:
            interrupted = request
        except BaseException:
            with suppress(RunFailed):  # the error that ended the run is the first cause
                self.tell("stopped")
            raise
        self.tell("stopped")
        return interrupted

    def _ends_early(self) -> bool:
        """Whether a callback ends the training between two epochs, as the process that records knows."""
        epoch, able = self.position.epoch, [one for one in self.prepared.callbacks if one.callback.changes == "length"]
        if epoch == 1 or not able:
            return False
        reasons = (f"{one.name}: {why}" for one in self.led if one in able and (why := one.call("stops")))
        if reason := self.process.tell(f"stops/{epoch}", next(reasons, "")):
            self.told["stopped_early"] = f"after epoch {epoch - 1}: {reason}"
        return bool(reason)

    def _run_epoch(self, at: int | None) -> None:
        """Train, evaluate and record an epoch; `at`: continue from the cut before this forward of it."""
        position, epoch, opened = self.position, self.position.epoch, self.prepared.opened
        if not position.evaluates:
            if at is None:
                position.epoch_began = position.seconds, position.micro_batches
            position.train = self._train(epoch, at)
        assert position.train is not None
        position.evaluates = True
        run, split, values = self.prepared.spec.run, self.prepared.spec.data.evaluated, None
        due = epoch % run.evaluate_every == 0 or epoch == run.epochs
        if due and opened.replica == 0:  # the first replica evaluates alone
            with evaluating(self.executors):
                self.tell("evaluating", epoch)
                values = self._evaluate(split, epoch)
                if any(one.callback.reads_weights for one in self.prepared.callbacks):
                    weights = self.process.gather(f"weights/{epoch}", self.weights())
                    for one in self.led:
                        if one.callback.reads_weights:
                            one.call("evaluated_weights", epoch, weights)
        position.evaluates = False
        seconds, done = position.epoch_began
        speed = (position.micro_batches - done) * opened.whole / (position.seconds - seconds)
        means: dict[str, Any] = {"train": position.train, "test": None, split: values}
        report = EpochEnded(epoch=epoch, samples_per_second=speed, learning_rate=self.learning_rate, **means)
        position.epochs.append(report)  # from here on a checkpoint has the epoch among those that are done
        self.meters = Meters()
        record = {f"{part}/{name}": value for part, of in means.items() for name, value in (of or {}).items()}
        record |= {"samples_per_second": speed, "learning_rate": report.learning_rate}
        self._record(epoch, position.micro_batches, record)
        if self.metrics is not None:  # if the run fails, another process may write the summary
            self.process.tell("trained", self.summary())
        self.tell("epoch_ended", report)

    def _evaluate(self, split: str, epoch: int) -> Mapping[str, float]:
        """Return the means and metrics over a split, with the weights of this epoch; nothing where the head is in another process."""
        opened = self.prepared.opened
        batches = opened.evaluation(getattr(opened, split), self.prepared.spec.run.evaluation_batches)
        results = self.scheduler.evaluate(batches, list(map(len, batches.parts)))
        found = measure(results, self.prepared.checked.metrics, f"{split} data", f"after epoch {epoch}")
        best = self.prepared.spec.checkpoint.best or ""
        recorded = [f"{split}/{name}" for name in (*found.means, *found.undefined)]
        if found.samples and best.startswith(f"{split}/") and best not in recorded:
            message = f"checkpoint.best = {shown(best)} is not a value of this run's evaluations"
            raise RunFailed(message, suggestion(best, recorded))
        for name, value in found.undefined.items():
            self.warn(f"{split}/{name} is {value}, which is not recorded: the metric is undefined on these targets")
        return found.means

    def _train(self, epoch: int, at: int | None) -> Mapping[str, float]:
        position, meters, opened = self.position, self.meters, self.prepared.opened
        length, every = opened.length, self.prepared.spec.run.log_every
        first, interval, means = (epoch - 1) * length, self.executors[-1].updater.read_interval, meters.means()
        told: list[Callable[..., object]] = [*(partial(one.call, "trained") for one in self.led), self.listener.trained]

        def observe(result: HeadResult) -> None:
            nonlocal means
            meters.add(result)
            done = position.micro_batches + 1 - first
            logged = done % every == 0
            # To read a result, the host waits for the GPU. So it reads only where the means are asked for.
            if logged or done % interval == 0 or done == length:
                loss = self.read_losses()
                means = meters.means()
            position.micro_batches += 1
            if logged:
                step = {"train/micro_batch_loss": loss, "train/learning_rate": self.learning_rate}
                self._record(epoch, position.micro_batches, step)
            for tell in told:
                tell(epoch, done, means)

        micro_batches = range(first, first + length)
        if self._begin_probe is not None:
            self._begin_probe(micro_batches, at, position.since)
        self._began = time.perf_counter()
        try:
            with closing(iter(opened.epoch(epoch - 1, 0 if at is None else at - first))) as source:
                self.scheduler.train(source, micro_batches, observe, at, position.since)
        finally:
            position.seconds, self._began = self.seconds, None
        if self.prepared.spec.partition.replicas > 1:
            # The heads of other replicas have seen the other samples of these micro-batches.
            sums = meters.sums() if meters.samples and self.metrics is None else {}
            for other in filter(None, self.process.collect(f"meters/{epoch}", sums)):
                meters.merge(other)
        meters.expect_targets("training data")
        return meters.means()

    def read_losses(self) -> float:
        """Read the results that wait on the head's device; return the latest loss, NaN where none waits; RunFailed: one is not finite, or has left the first one."""
        loss = math.nan
        for result, loss in self.meters.read():
            first = self.position.first_loss = loss if self.position.first_loss is None else self.position.first_loss
            if not abs(loss) <= _FAR * max(1.0, abs(first)):
                where = f"the loss at micro-batch {result.micro_batch} (epoch {self.position.epoch})"
                raise loss_failed(where, loss, first)
        return loss

    def test(self) -> Interrupted | None:
        """Evaluate the test data, with the best weights if the run keeps them, at the end of a run with validation samples; return what interrupted it."""
        opened, spec, directory = self.prepared.opened, self.prepared.spec.checkpoint, self.process.directory
        if opened.replica > 0:
            return None
        assert directory is not None
        epoch, at, weights = len(self.position.epochs), 0, "last"
        if spec.best is not None:
            at = self.process.tell("best", best_cut(directory, spec, self.prepared.checked.scales) or 0)
        if at:
            # Each process takes those of the nodes that it hosts, whichever stages the checkpoint has them in.
            epoch, weights, best = at // opened.length, "best", read_weights(directory, at)
            copy_weights((pair for one in self.executors for pair in one.modules.items()), best.__getitem__)
        self.tell("testing", f"{weights} weights, of epoch {epoch}")
        try:
            with closing(opened.loaders), nullcontext() if at else evaluating(self.executors):
                values = self._evaluate("test", epoch)
        except Interrupted as request:
            return request
        self.told |= {"test": values, "test_weights": {"weights": weights, "epoch": epoch}}
        tested = {f"test/{name}": value for name, value in values.items()}
        self._record(len(self.position.epochs), self.position.micro_batches, tested)
        return None
