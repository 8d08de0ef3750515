"""A run as people see it: plain lines."""

from __future__ import annotations

import io
from pathlib import Path

from attrs import evolve

from petra_graph.plugins.callback import EpochEnded, Started
from petra_graph.report.progress import Progress, heading

STARTED = Started(
    name="quick[start]",
    directory=Path("runs/x[red]y"),
    epochs=10,
    micro_batches=44,
    batch=32,
    method="petra",
    schedule="1f1b",
    accumulation=2,
    stages=7,
    parameters=12345,
)
REPORT = EpochEnded(
    epoch=3,
    train={"loss": 0.51234, "top1": 0.8125, "top5": 0.99},
    test={"loss": 0.25, "top1": 0.9, "top5": 1.0},
    samples_per_second=12345.6,
    learning_rate=0.05,
)
LINE = (
    "epoch  3/10   train loss 0.5123 top1 81.25 % top5 99.00 %   test loss 0.2500 top1 90.00 % top5 100.00 %   lr 0.05   "
    "12,346 samples/s"
)


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_log_of_a_long_epoch_gets_a_line_a_minute():
    """Its micro-batches take 20 s each, and its evaluation ten minutes."""
    stream, clock, run = io.StringIO(), Clock(), evolve(STARTED, micro_batches=10, resumed_at=20)
    listener = Progress(stream, clock)
    listener.started(run)
    for done in range(1, 10):
        clock.now += 20
        listener.trained(3, done, {"loss": 1.0, "top1": 0.5})
    clock.now += 100
    listener.evaluating(3)
    clock.now += 600
    listener.epoch_ended(REPORT)
    assert stream.getvalue().removeprefix(f"{heading(run)}\n").splitlines() == [
        "epoch  3/10   3 of 10 micro-batches   1.6 samples/s  ETA 25 min 40 s   train loss 1.0000 top1 50.00 %",
        "epoch  3/10   6 of 10 micro-batches   1.6 samples/s  ETA 24 min 40 s   train loss 1.0000 top1 50.00 %",
        "epoch  3/10   9 of 10 micro-batches   1.6 samples/s  ETA 23 min 40 s   train loss 1.0000 top1 50.00 %",
        LINE,
    ]
