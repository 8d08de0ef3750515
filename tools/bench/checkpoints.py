"""What checkpoints cost: one network trained without them, with files written beside the training, and with files waited for.

The three take turns, an epoch each, in one process, with its own scheduler and channels each. Prints the share of time that
checkpoints add, as the median over turns; for how long the stages were held up; and the bytes of a checkpoint. Files go to the disk of `--folder`, with `fsync`.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

import click
from network import save
from parallel import SPEC

from petra_graph.kinds.listener import Listener
from petra_graph.record import checkpoint
from petra_graph.runtime.scheduler.scheduler import Scheduler
from petra_graph.training.checkpoints.checkpointing import Checkpoints
from petra_graph.training.loop.callbacks import Callbacks
from petra_graph.training.loop.meters import Meters
from petra_graph.training.loop.trainer import Trainer
from petra_graph.training.loop.training_position import TrainingPosition
from petra_graph.training.prepared_run import fix_arithmetic, prepare
from petra_graph.training.processes.run_process import RunProcess

SETTINGS = ("method.schedule=1f1b", "optimizer.options.momentum=0.9")


@click.command()
@click.option("--width", default=64, show_default=True, help="Channels of both streams together.")
@click.option("--side", default=16, show_default=True, help="Pixels.")
@click.option("--blocks", default=8, show_default=True, help="Residual blocks.")
@click.option("--batch", default=16, show_default=True, help="Samples in a micro-batch.")
@click.option("--updates", default=500, show_default=True, help="Between two checkpoints: an epoch.")
@click.option("--turns", default=5, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path, exists=True), help="Default: that of temporary files.")
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(
    *, width: int, side: int, blocks: int, batch: int, updates: int, turns: int, folder: Path | None, write: bool
) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        spec = Path(name, "checkpoints.toml")
        spec.write_text(SPEC.format(side=side, half=width // 2, blocks=blocks))
        settings = (*SETTINGS, f"data.batch={batch}", f"data.options.train={batch * updates}", "data.options.test=16")
        trainings = {
            way: _Training(str(spec), settings, way, Path(name, way)) for way in ("none", "asynchronous", "waits")
        }
        seconds: dict[str, list[float]] = {way: [] for way in trainings}
        for _ in range(turns + 1):
            for way, training in trainings.items():
                seconds[way].append(training.epoch())
        written = checkpoint.read_manifest(Path(name, "waits"), checkpoint.numbers(Path(name, "waits"))[0])

    def added(way: str) -> float:
        return statistics.median(
            other / alone - 1 for other, alone in zip(seconds[way][1:], seconds["none"][1:], strict=True)
        )

    result = {
        "width": width,
        "side": side,
        "blocks": blocks,
        "batch": batch,
        "updates between checkpoints": updates,
        "turns": turns,
        "added time, files written beside the training": round(added("asynchronous"), 4),
        "added time, files waited for": round(added("waits"), 4),
        "stages held up, share of time, beside": round(
            trainings["asynchronous"].held_up / sum(seconds["asynchronous"]), 4
        ),
        "stages held up, share of time, waited for": round(trainings["waits"].held_up / sum(seconds["waits"]), 4),
        "bytes of a checkpoint": written.bytes,
    }
    click.echo(json.dumps(result, indent=2))
    if write:
        click.echo(f"written: {save('checkpoints', result)}", err=True)


class _Training:
    """One of the trainings that take turns."""

    def __init__(self, spec: str, settings: tuple[str, ...], way: str, directory: Path) -> None:
        self.prepared = prepare(
            spec, (*settings, f"checkpoint.asynchronous={str(way == 'asynchronous').lower()}", "checkpoint.keep=1")
        )
        fix_arithmetic(self.prepared)
        self.scheduler = Scheduler(self.prepared.executors())
        self.way, self.epochs = way, 0
        self.process = RunProcess()
        self.process.directory = directory
        self.trainer = Trainer(
            prepared=self.prepared,
            scheduler=self.scheduler,
            metrics=None,
            listener=Listener(),
            peers=self.process,
            callbacks=Callbacks(),
            position=TrainingPosition(micro_batches_per_epoch=len(self.prepared.opened.batches)),
            meters=Meters(self.prepared.loss),
        )
        self.held_up = 0.0

    def epoch(self) -> float:
        """Train an epoch and, but for one of the trainings, write a checkpoint in its middle; return the seconds."""
        length = len(self.prepared.opened.batches)
        micro_batches = range(self.epochs * length, (self.epochs + 1) * length)
        self.epochs += 1
        data = list(self.prepared.opened.epoch(0))
        checkpoints = Checkpoints(self.process, self.trainer)
        if self.way != "none":
            self.process.supervisor.announced_cuts.add(micro_batches.start + length // 2)
            self.scheduler.gate.cuts = checkpoints
        began = time.perf_counter()
        self.scheduler.train(data, micro_batches, lambda _: None)
        checkpoints.close()
        seconds = time.perf_counter() - began
        self.held_up += checkpoints.seconds
        return seconds


if __name__ == "__main__":
    main()
