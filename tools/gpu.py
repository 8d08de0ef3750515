"""What can be measured only on a GPU, in pieces of at most ten minutes: `make gpu`.

    python tools/gpu.py                  carry out the pieces that are not done, and print what they found
    python tools/gpu.py --list           the pieces with their commands
    python tools/gpu.py --rehearse       carry out all of it in small on the CPU, to see that it works

A piece is a few ordinary commands and what is read from their results. Each result is written when its piece is done, so a day that
was cut short continues where it stopped; a piece that failed is tried again. Nothing is downloaded: images are random, and text is
the source of Python's standard library.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import torch
from attrs import frozen
from safetensors.torch import load_file

from petra_graph.record.run_directory import environment

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "tools" / "bench" / "results"
CUDA_TESTS = ("tests/promises/test_cuda.py",)
METHODS = {
    "petra": ("method={ name = 'petra', schedule = '1f1b' }",),
    "reversible-backprop": ("method={ name = 'reversible-backprop' }",),
    "backprop": ("method={ name = 'backprop' }",),
}
PIECE_SECONDS = 600.0
"""The longest that a piece may take."""
Rows = Sequence[Mapping[str, Any]]


@frozen(kw_only=True)
class Network:
    """A specification, with data that is everywhere."""

    name: str
    spec: str
    batch: int
    """Samples in a micro-batch; a rehearsal has 4."""
    count: str
    """The key of the number of training samples."""
    data: Sequence[str]
    rehearsal: Sequence[str] = ()
    """What makes it small."""


def images(name: str, spec: str, side: int, batch: int, classes: int, *rehearsal: str) -> Network:
    options = f"data.options={{ shape = [3, {side}, {side}], classes = {classes}, test = 64 }}"
    data = ("data.name=random", options)
    return Network(name=name, spec=spec, batch=batch, count="data.options.train", data=data, rehearsal=rehearsal)


REVNET18 = images("RevNet18", "specs/revnet18_cifar10.toml", 32, 256, 10)
REVNET50 = images("RevNet50", "specs/revnet50_imagenet.toml", 224, 64, 1000, "data.options.shape=[3, 32, 32]")
GPT = Network(
    name="GPT",
    spec="plugins/petra-graph-text/specs/gpt_stdlib.toml",
    batch=16,
    count="data.options.samples",
    data=("callback=[]", "data.options.context=256", "architecture.options={ width = 512, layers = 12, heads = 8 }"),
    rehearsal=("data.options.context=16", "architecture.options={ width = 32, layers = 2, heads = 4 }"),
)


@frozen(kw_only=True)
class Piece:
    """A question, the commands that answer it, and how the answer is read from the folder that they have filled."""

    name: str
    question: str
    commands: Sequence[Sequence[str]]
    read: Callable[[], Rows]


@frozen(kw_only=True)
class Day:
    """Where the pieces are carried out."""

    folder: Path
    gpus: int
    rehearsal: bool = False

    @property
    def device(self) -> str:
        return "cpu" if self.rehearsal else "cuda:0"

    def settings(self, network: Network, micro_batches: int, batch: int = 0) -> list[str]:
        """Return what is set for so many micro-batches, or for three of 4 samples in a rehearsal."""
        size, count = (4, 3) if self.rehearsal else (batch or network.batch, micro_batches)
        sizes = (f"data.batch={size}", f"{network.count}={size * count}", "method.accumulation=1")
        return [*network.data, *sizes, *(network.rehearsal if self.rehearsal else ())]

    def run(self, case: Path, network: Network, settings: Iterable[str], *options: str) -> list[str]:
        """Return the command of a training whose run directory is made in `case`."""
        one = ("run.epochs=1", "run.evaluation_batches=1", f"run.directory={case}")
        return petra("run", network, [*settings, *one], *options)

    def pieces(self) -> list[Piece]:
        """Return all pieces that a machine can carry out, the ones without which the others mean little first."""
        networks = [REVNET18, REVNET50, *([GPT] if find_spec("petra_graph_text") else [])]
        several = self.gpus > 1 or self.rehearsal
        return [
            *([] if self.rehearsal else [self.tests()]),
            self.across_devices(),
            self.same_bits(),
            *map(self.plan_and_run, networks),
            *map(self.side_by_side, (REVNET18, REVNET50)),
            *([self.several_devices(REVNET50)] if several else []),
        ]

    def tests(self) -> Piece:
        command = (sys.executable, "-m", "pytest", "-q", *CUDA_TESTS)
        return Piece(name="tests", question="Do the tests of CUDA pass?", commands=[command], read=list)

    def across_devices(self) -> Piece:
        folder = self.folder / "across-devices"
        # One core computes 7 samples a second of the whole width in float64.
        same = [*self.settings(REVNET18, 24, batch=8), "architecture.options.width=0.125", "precision.compute=float64"]
        places = ("cpu", self.device)
        return Piece(
            name=folder.name,
            question="How far are the weights of a GPU from a CPU's after a training in float64?",
            commands=[
                self.run(folder / f"{method}-{at}", REVNET18, [*same, *own, on(place)])
                for method, own in METHODS.items()
                for at, place in enumerate(places)
            ],
            read=lambda: [
                {"method": one, "relative difference": difference(folder / f"{one}-0", folder / f"{one}-1")}
                for one in METHODS
            ],
        )

    def same_bits(self) -> Piece:
        folder = self.folder / "same-bits"
        return Piece(
            name=folder.name,
            question="Does a run on the GPU give the same bits twice?",
            commands=[
                self.run(folder / f"{method}-{time}", REVNET18, [*self.settings(REVNET18, 16), *own, on(self.device)])
                for method, own in METHODS.items()
                for time in range(2)
            ],
            read=lambda: [
                {"method": one, "same bits": difference(folder / f"{one}-0", folder / f"{one}-1") == 0.0}
                for one in METHODS
            ],
        )

    def plan_and_run(self, network: Network) -> Piece:
        folder = self.folder / f"plan-and-run-{network.name}"
        profile = str(folder / "profile.json")
        settings = [*self.settings(network, 60), on(self.device)]
        commands = [petra("profile", network, settings, "--output", profile)]
        for method, own in METHODS.items():
            planned = [*settings, *own, f"partition.profile={profile}"]
            commands += [self.run(folder / method, network, planned)]
            commands += [petra("plan", network, planned, "--json", "--output", f"{folder / method}.json")]

        def row(method: str) -> Mapping[str, Any]:
            summary, plan = summary_of(folder / method), json.loads((folder / f"{method}.json").read_text())
            peak = sum(sum(one["cuda_peak_bytes"].values()) for one in summary["measured"]["processes"])
            held, speed = plan["totals"]["bytes"]["total"], plan["timing"]["samples_per_second"]
            return {
                "method": method,
                "planned bytes": held,
                "planned / measured bytes": held / peak if peak else None,
                "measured samples/s": summary["samples_per_second"],
                "planned / measured speed": speed / summary["samples_per_second"],
            }

        question = f"{network.name} on one GPU: are the plan's memory and speed true, by a profile of this GPU?"
        return Piece(name=folder.name, question=question, commands=commands, read=lambda: list(map(row, METHODS)))

    def side_by_side(self, network: Network) -> Piece:
        folder = self.folder / f"side-by-side-{network.name}"
        file = folder / "result.json"
        sizes = ("4", "2", "1") if self.rehearsal else (str(network.batch), "12", "3")
        options = zip(("--batch", "--micro-batches", "--rounds"), sizes, strict=True)
        command = [sys.executable, "tools/bench/one_process.py", "--spec", network.spec, "--device", self.device]
        command += [*(word for pair in options for word in pair), "--output", str(file)]
        command += words(self.settings(network, 12))

        def read() -> Rows:
            found = json.loads(file.read_text())
            return [
                {"what": what, "speed, plain = 1": found["speed, plain = 1"][what], **row}
                for what, row in found["of a micro-batch"].items()
            ]

        question = f"{network.name} on one GPU beside plain autograd: what does a micro-batch cost?"
        return Piece(name=folder.name, question=question, commands=[command], read=read)

    def several_devices(self, network: Network) -> Piece:
        folder = self.folder / f"several-devices-{network.name}"
        count = 2 if self.rehearsal else self.gpus
        settings = [*self.settings(network, 60), *METHODS["petra"], f"partition.stages={count}"]
        transports = ("auto", "process-group", "nccl")
        each = [
            self.run(folder / way, network, [*settings, f"run.transport={way}"], "--processes", str(count))
            for way in transports
        ]
        return Piece(
            name=folder.name,
            question=f"{network.name} in {count} stages, a GPU each: how fast beside one GPU, and the same bits?",
            commands=[self.run(folder / "one", network, [*settings, on(self.device)]), *each],
            read=lambda: [
                {
                    "transport": way,
                    "samples/s": summary_of(folder / way)["samples_per_second"],
                    "same bits as one device": difference(folder / "one", folder / way) == 0.0,
                }
                for way in ("one", *transports)
            ],
        )


def petra(verb: str, network: Network, settings: Iterable[str], *options: str) -> list[str]:
    return [sys.executable, "-m", "petra_graph", verb, network.spec, *options, *words(settings)]


def words(settings: Iterable[str]) -> list[str]:
    return [word for text in settings for word in ("--set", text)]


def on(device: str) -> str:
    return f"partition.devices=['{device}']"


def summary_of(case: Path) -> dict[str, Any]:
    """Return the summary of the only run of a case."""
    (file,) = case.glob("*/summary.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def difference(one: Path, other: Path) -> float:
    """Return the largest difference of two cases' weights, as a share of the tensor's largest value."""
    left, right = (load_file(next(case.glob("*/weights.safetensors"))) for case in (one, other))
    apart = ((tensor.double() - right[name].double()).abs().max() for name, tensor in left.items())
    return max(
        float(most / left[name].double().abs().max().clamp_min(1e-300)) for name, most in zip(left, apart, strict=True)
    )


def carried_out(piece: Piece, day: Day) -> dict[str, Any]:
    """Execute a piece's commands, and write and return what they gave."""
    folder, began, fault = day.folder / piece.name, time.monotonic(), ""
    rows: Rows = []
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with (folder / "log.txt").open("w") as log:
        for command in piece.commands:
            fault = fault or executed(command, log, PIECE_SECONDS - (time.monotonic() - began))
    try:
        rows = rows if fault else piece.read()
    except (OSError, ValueError, LookupError) as error:
        fault = f"its results cannot be read: {error!r}"
    done = {
        "piece": piece.name,
        "question": piece.question,
        "status": f"failed: {fault}" if fault else "done",
        "seconds": round(time.monotonic() - began, 1),
        "rows": rows,
        "commands": [text_of(command, day) for command in piece.commands],
    }
    (day.folder / f"{piece.name}.json").write_text(json.dumps(done, indent=1) + "\n")
    return done


def executed(command: Sequence[str], log: Any, seconds: float) -> str:
    """Return why a command failed; empty if it did not. One that takes too long is ended with all its processes."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        code = process.wait(max(seconds, 0.0))
    except subprocess.TimeoutExpired:
        return f"the piece takes longer than its time, in: {shlex.join(command[1:5])}"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return f"exit code {code} of: {shlex.join(command[1:5])}; see log.txt" if code else ""


def text_of(command: Sequence[str], day: Day) -> str:
    """Return a command as one would type it in the repository."""
    text = shlex.join(["python" if word == sys.executable else word for word in command])
    return text.replace(f"{day.folder}{os.sep}", f"{day.folder.name}{os.sep}")


@click.command()
@click.option("--list", "listed", is_flag=True, help="Show the pieces and their commands; carry out nothing.")
@click.option("--rehearse", is_flag=True, help="Carry out all of it in small on the CPU; needs no GPU.")
@click.option("--only", multiple=True, metavar="PIECE", help="These pieces alone, done or not.")
@click.option("--folder", default=Path("runs/gpu"), show_default=True, type=click.Path(file_okay=False, path_type=Path))
def main(listed: bool, rehearse: bool, only: Sequence[str], folder: Path) -> None:
    """Carry out on this machine's GPUs what can be measured only there."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    place = folder.resolve()
    day = Day(
        folder=place.with_name(f"{place.name}-rehearsal") if rehearse else place, gpus=len(gpus), rehearsal=rehearse
    )
    if not (gpus or rehearse or listed):
        raise click.ClickException("no GPU is here, so nothing was measured; --list shows what would be")
    if listed:
        for piece in day.pieces():
            click.echo("\n  ".join([f"{piece.name}: {piece.question}", *(text_of(one, day) for one in piece.commands)]))
        return
    found: dict[str, dict[str, Any]] = {}
    for piece in day.pieces():
        file = day.folder / f"{piece.name}.json"
        one: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"status": "not done", "rows": []}
        if piece.name in only if only else one["status"] != "done":
            one = carried_out(piece, day)
        found[piece.name] = one
        click.echo(f"\n{piece.name}: {piece.question} {one['status']}")
        for row in one["rows"]:
            click.echo("  " + ", ".join(f"{key}: {value}" for key, value in row.items()))
    now = datetime.now(UTC)
    where = RESULTS if not rehearse else day.folder
    document = {"date": now.isoformat(timespec="seconds"), "gpus": gpus, "pieces": list(found.values())}
    written = where / f"gpu-{now:%Y-%m-%d}.json"
    written.write_text(json.dumps({**document, "environment": environment()}, indent=1) + "\n")
    click.echo(f"\nwritten: {written}")
    raise SystemExit(any(one["status"] != "done" for one in found.values()))


if __name__ == "__main__":
    main()
