"""What can be measured only on a GPU, in pieces of at most ten minutes: `make gpu`.

    python tools/gpu.py                     carry out the pieces that are not done, and write the page
    python tools/gpu.py --list              what is done, and the commands of what is not
    python tools/gpu.py --list --pretend 2  the same, as if two GPUs were here
    python tools/gpu.py --rehearse          carry out all of it in small on the CPU, to see that it works

A piece is a few ordinary commands and what is read from their results. Each result is written when its piece is done, so a day that
was cut short continues where it stopped; a piece that failed is tried again. Nothing is downloaded or installed: images are random,
and text is the source of Python's standard library.
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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

try:
    import click
    import torch
    from attrs import evolve, frozen

    from petra_graph.planning.plan_spec import plan
    from petra_graph.record.run_directory import environment
    from petra_graph.record.weights import open_weights
    from petra_graph.units import memory
except ModuleNotFoundError as error:
    sys.exit(
        f"{error}; nothing is installed here: make gpu PYTHON=... names a Python that has torch and what petra-graph requires"
    )

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "tools" / "bench" / "results"
CUDA_TESTS = ("tests/promises/test_cuda.py",)
TRANSFORMERS = "petra-graph-text"
PETRA = ("method.name=petra", "method.schedule=1f1b", "method.accumulation=1")
METHODS: Mapping[str, Sequence[str]] = {
    "petra": PETRA,
    "reversible-backprop": ("method.name=reversible-backprop", "method.schedule=sequential", "method.accumulation=1"),
    "backprop": ("method.name=backprop", "method.schedule=sequential", "method.accumulation=1"),
}

Row = Mapping[str, Any]
Command = Sequence[str]


@frozen(kw_only=True)
class Day:
    """Where the pieces are carried out."""

    folder: Path
    gpus: int
    rehearsal: bool = False
    """In small, on the CPU."""

    @property
    def device(self) -> str:
        return "cpu" if self.rehearsal else "cuda:0"

    def run(self, case: Path, spec: str, overrides: Iterable[str], *options: str) -> Command:
        """Return the command of a training whose run directory is made in `case`."""
        return (
            *(sys.executable, "-m", "petra_graph", "run", spec, *options),
            *_set([*overrides, "run.epochs=1", "run.evaluation_batches=1", f"run.directory={case}"]),
        )


@frozen(kw_only=True)
class Network:
    """A specification of `specs/` or of a plugin, with data that is everywhere."""

    name: str
    spec: str
    batch: int
    """Samples in a micro-batch on a GPU; a rehearsal has 4."""
    count: str
    """The key of the number of training samples."""
    data: Sequence[str]
    rehearsal: Sequence[str] = ()
    """Overrides that make it small."""

    def overrides(self, day: Day, micro_batches: int) -> Sequence[str]:
        """Return the overrides for `micro_batches` micro-batches, or three in a rehearsal."""
        batch, micro_batches = (4, 3) if day.rehearsal else (self.batch, micro_batches)
        sizes = (f"data.batch={batch}", f"{self.count}={batch * micro_batches}", "run.log_every=1000")
        return (*self.data, *sizes, *(self.rehearsal if day.rehearsal else ()))


def images(name: str, spec: str, *, side: int, batch: int, classes: int, rehearsal: Sequence[str] = ()) -> Network:
    shape = ("data.name=random", f"data.options.shape=[3, {side}, {side}]", "data.options.test=64")
    return Network(
        name=name,
        spec=spec,
        batch=batch,
        count="data.options.train",
        data=(*shape, f"data.options.classes={classes}"),
        rehearsal=("data.options.test=4", *rehearsal),
    )


SMALL_IMAGES = ("data.options.shape=[3, 32, 32]", "graph.input.shape=[3, 32, 32]")
REVNET18 = images("RevNet18", "specs/revnet18_cifar10.toml", side=32, batch=256, classes=10)
REVNET50 = images("RevNet50", "specs/revnet50_imagenet.toml", side=224, batch=64, classes=1000, rehearsal=SMALL_IMAGES)
GPT = Network(
    name="GPT",
    spec=f"plugins/{TRANSFORMERS}/specs/gpt_stdlib.toml",
    batch=16,
    count="data.options.samples",
    data=(
        "callback=[]",
        "data.options.context=256",
        "architecture.options.width=512",
        "architecture.options.layers=12",
    ),
    rehearsal=("data.options.context=16", "architecture.options.width=32", "architecture.options.layers=2"),
)


@frozen(kw_only=True)
class Piece:
    """A question, the commands that answer it, and how the answer is read from the folder that they have filled."""

    name: str
    question: str
    commands: Sequence[Command]
    read: Callable[[], Sequence[Row]]


def pieces(day: Day) -> list[Piece]:
    """Return all pieces that a machine can carry out, the ones without which the others mean little first."""
    networks = [REVNET18, REVNET50, *([GPT] if _installed(TRANSFORMERS) else [])]
    return [
        *([] if day.rehearsal else [cuda_tests(day)]),
        across_devices(day),
        same_bits(day),
        *(plan_and_run(day, network) for network in networks),
        side_by_side(day, REVNET18, side=32, classes=10),
        side_by_side(day, REVNET50, side=32 if day.rehearsal else 224, classes=1000),
        compiled(day, REVNET18),
        *([several_devices(day, REVNET50), torch_pipelines(day, REVNET50)] if day.gpus > 1 or day.rehearsal else []),
    ]


def cuda_tests(day: Day) -> Piece:
    file = day.folder / "tests" / "tests.xml"

    def read() -> Sequence[Row]:
        suite = ET.parse(file).getroot().find("testsuite")
        counts = {} if suite is None else suite.attrib
        return [{key: int(counts[key]) for key in ("tests", "failures", "errors", "skipped")}]

    command = (sys.executable, "-m", "pytest", "-q", *CUDA_TESTS, f"--junitxml={file}")
    return Piece(name="tests", question="Do the tests of CUDA pass?", commands=[command], read=read)


def across_devices(day: Day) -> Piece:
    folder = day.folder / "across-devices"
    few = evolve(REVNET18, batch=8)
    narrow = (
        "architecture.options.width=0.125",
        "precision.compute=float64",
    )  # one core computes 7 samples a second of the whole width
    same = [*few.overrides(day, 24), *narrow]
    where = {"cpu": on_devices("cpu"), "device": on_devices(day.device)}
    cases = {method: {place: folder / f"{method}-{place}" for place in where} for method in METHODS}
    return Piece(
        name=folder.name,
        question="How far are the weights of a GPU from a CPU's after a training in float64?",
        commands=[
            day.run(cases[method][place], REVNET18.spec, [*same, *METHODS[method], devices])
            for method in METHODS
            for place, devices in where.items()
        ],
        read=lambda: [
            {"method": method, "relative difference": difference(found["cpu"], found["device"])}
            for method, found in cases.items()
        ],
    )


def same_bits(day: Day) -> Piece:
    folder = day.folder / "same-bits"
    cases = {method: [folder / f"{method}-{time}" for time in ("first", "second")] for method in METHODS}
    return Piece(
        name=folder.name,
        question="Does a run on the GPU give the same bits twice?",
        commands=[
            day.run(case, REVNET18.spec, [*REVNET18.overrides(day, 16), *METHODS[method], on_devices(day.device)])
            for method, both in cases.items()
            for case in both
        ],
        read=lambda: [{"method": method, "same bits": difference(*both) == 0.0} for method, both in cases.items()],
    )


def plan_and_run(day: Day, network: Network) -> Piece:
    folder = day.folder / f"plan-and-run-{network.name}"
    profile = folder / "profile.json"
    settings = [*network.overrides(day, 60), on_devices(day.device)]
    profiling = (
        sys.executable,
        "-m",
        "petra_graph",
        "profile",
        network.spec,
        "--output",
        str(profile),
        *_set(settings),
    )
    planned = [*settings, f"partition.profile={profile}"]

    def row(method: str) -> Row:
        summary = summary_of(folder / method)
        predicted = plan(f"{summary['directory']}/resolved.toml").document(with_timeline=False)
        held = predicted["totals"]["bytes"]["total"]
        peaks = [sum(one["cuda_peak_bytes"].values()) for one in summary["measured"]["processes"]]
        speeds = predicted["timing"]["samples_per_second"], summary["samples_per_second"]
        return {
            "method": method,
            "planned memory": memory(held),
            "most that torch handed out": memory(sum(peaks)) if any(peaks) else "not on a GPU",
            "planned / measured memory": _ratio(held, sum(peaks)),
            "planned samples/s": speeds[0],
            "measured samples/s": speeds[1],
            "planned / measured speed": _ratio(*speeds),
        }

    return Piece(
        name=folder.name,
        question=f"{network.name} on one GPU: are the plan's memory and speed true, by a profile of this GPU?",
        commands=[
            profiling,
            *(day.run(folder / method, network.spec, [*planned, *METHODS[method]]) for method in METHODS),
        ],
        read=lambda: [row(method) for method in METHODS],
    )


def side_by_side(day: Day, network: Network, *, side: int, classes: int) -> Piece:
    folder = day.folder / f"side-by-side-{network.name}"
    file = folder / "result.json"
    batch, size = (4, ("--micro-batches", "2", "--rounds", "1")) if day.rehearsal else (network.batch, ())

    def read() -> Sequence[Row]:
        found = json.loads(file.read_text())
        return [
            {"what": what, "speed, plain = 1": found["speed, plain = 1"][what], **row}
            for what, row in found["of a micro-batch"].items()
        ]

    command = (
        *(sys.executable, "tools/bench/device.py", "--spec", network.spec, "--device", day.device, "--side", str(side)),
        *("--classes", str(classes), "--batch", str(batch), *size, "--output", str(file)),
        *_set(one for one in network.overrides(day, 1) if one.startswith("graph.")),
    )
    return Piece(
        name=folder.name,
        question=f"{network.name} on one GPU beside plain autograd: milliseconds of a micro-batch, of its kernels, launches, MiB",
        commands=[command],
        read=read,
    )


def compiled(day: Day, network: Network) -> Piece:
    folder = day.folder / f"compiled-{network.name}"
    settings = [*network.overrides(day, 60), *PETRA, on_devices(day.device)]

    def rows() -> Sequence[Row]:
        speeds = {way: summary_of(folder / way)["samples_per_second"] for way in ("false", "true")}
        return [
            {"run.compile": way, "samples/s": speed, "speed-up": _ratio(speed, speeds["false"])}
            for way, speed in speeds.items()
        ]

    return Piece(
        name=folder.name,
        question=f"{network.name}: how much faster does petra train with compiled blocks?",
        commands=[day.run(folder / way, network.spec, [*settings, f"run.compile={way}"]) for way in ("false", "true")],
        read=rows,
    )


def several_devices(day: Day, network: Network) -> Piece:
    folder = day.folder / f"several-devices-{network.name}"
    count = 2 if day.rehearsal else day.gpus
    devices = ["cpu"] * count if day.rehearsal else [f"cuda:{index}" for index in range(count)]
    settings = [*network.overrides(day, 60), *PETRA, f"partition.stages={count}"]
    one, all_in_one, each = "one device", f"one process, {count} devices", f"{count} processes, a device each"
    transports = ("auto", "process-group", "nccl")

    def row(how: str, case: Path) -> Row:
        speed, base = (summary_of(found)["samples_per_second"] for found in (case, folder / "one"))
        return {
            "how": how,
            "samples/s": speed,
            "speed-up": _ratio(speed, base),
            "same bits as one device": difference(folder / "one", case) == 0.0,
        }

    return Piece(
        name=folder.name,
        question=f"{network.name} in {count} stages, a GPU each: how much faster than one GPU, and the same bits?",
        commands=[
            day.run(folder / "one", network.spec, [*settings, on_devices(devices[0])]),
            day.run(folder / "devices", network.spec, [*settings, on_devices(*dict.fromkeys(devices))]),
            *(
                day.run(folder / way, network.spec, [*settings, f"run.transport={way}"], "--processes", str(count))
                for way in transports
            ),
        ],
        read=lambda: [
            row(one, folder / "one"),
            row(all_in_one, folder / "devices"),
            *(row(f"{each}, transport {way}", folder / way) for way in transports),
        ],
    )


def torch_pipelines(day: Day, network: Network) -> Piece:
    folder = day.folder / f"torch-pipelines-{network.name}"
    file, count = folder / "result.json", 2 if day.rehearsal else day.gpus
    micro_batches, rounds = (4, 1) if day.rehearsal else (8, 5)
    command = (
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)),
        *("tools/bench/torch_pipelines.py", "--spec", network.spec, "--device", "cpu" if day.rehearsal else "cuda"),
        *("--micro-batches", str(micro_batches), "--rounds", str(rounds), "--output", str(file)),
        *_set([*network.overrides(day, 60), f"{network.count}={network.batch * micro_batches}"]),
    )

    def read() -> Sequence[Row]:
        rates = json.loads(file.read_text())["samples per second"]
        return [{"what": what, "samples/s": rate} for what, rate in rates.items()]

    return Piece(
        name=folder.name,
        question=f"{network.name} on {count} GPUs: how fast are torch's own pipelines and data parallelism, with micro-batches of the same size?",
        commands=[command],
        read=read,
    )


def on_devices(*devices: str) -> str:
    """Return the override that places a network on devices."""
    return f"partition.devices={json.dumps(devices)}"


def summary_of(case: Path) -> dict[str, Any]:
    """Return the summary of the only run of a case."""
    (file,) = case.glob("*/summary.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def difference(one: Path, other: Path) -> float:
    """Return the largest difference of two cases' weights, as a share of the tensor's largest value."""
    (first,), (second,) = one.glob("*/weights.safetensors"), other.glob("*/weights.safetensors")
    with open_weights(first) as left, open_weights(second) as right:
        return max(_apart(left.read(name), right.read(name)) for name in left.shapes)


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    if torch.equal(one, other):
        return 0.0
    one, other = one.double(), other.double()
    return float((one - other).abs().max() / one.abs().max().clamp_min(torch.finfo(torch.float64).tiny))


def carry_out(piece: Piece, day: Day, seconds: float) -> dict[str, Any]:
    """Execute a piece's commands, at most `seconds` together, and return and write what they gave."""
    folder = day.folder / piece.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.monotonic()
    fault = ""
    with (folder / "log.txt").open("w") as log:
        for command in piece.commands:
            fault = _executed(command, log, seconds - (time.monotonic() - began))
            if fault:
                break
    rows: Sequence[Row] = []
    if not fault:
        try:
            rows = piece.read()
        except (OSError, ValueError, LookupError) as error:
            fault = f"its results cannot be read: {type(error).__name__}: {error}"
    done = {
        "piece": piece.name,
        "question": piece.question,
        "status": f"failed: {fault}" if fault else "done",
        "seconds": round(time.monotonic() - began, 1),
        "rows": rows,
        "commands": [_text(command, day) for command in piece.commands],
    }
    (day.folder / f"{piece.name}.json").write_text(json.dumps(done, indent=1) + "\n")
    return done


def _executed(command: Command, log: Any, seconds: float) -> str:
    """Return why a command failed; empty if it did not. One that takes too long is ended with all its processes."""
    print("$", shlex.join(command), file=log, flush=True)
    process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        code = process.wait(max(seconds, 0.0))
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return f"the piece takes longer than its time, in: {shlex.join(command[1:5])}"
    return f"exit code {code} of: {shlex.join(command[1:5])}; see log.txt" if code else ""


def results(day: Day, planned: Iterable[Piece]) -> dict[str, dict[str, Any]]:
    """Return what was found before, by piece."""
    files = {piece.name: day.folder / f"{piece.name}.json" for piece in planned}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def write_page(day: Day, found: Iterable[Mapping[str, Any]]) -> Path:
    """Write all results as one dated JSON file and as a page in Markdown, and return the page."""
    now = datetime.now(UTC)
    setting = {key: value for key, value in environment().items() if key != "command"}
    names = [torch.cuda.get_device_name(index) for index in range(0 if day.rehearsal else day.gpus)]
    where = day.folder if day.rehearsal else RESULTS
    document: dict[str, Any] = {
        "date": now.isoformat(timespec="seconds"),
        "gpus": names,
        "pieces": list(found),
        "environment": setting,
    }
    file = where / f"gpu-{now:%Y-%m-%d}.json"
    file.write_text(json.dumps(document, indent=1) + "\n")
    page = file.with_suffix(".md")
    title = f"# On {', '.join(names) or 'the CPU: a rehearsal'}, {now:%Y-%m-%d}"
    page.write_text("\n\n".join([title, *(_section(one) for one in document["pieces"])]) + "\n")
    return page


def _section(done: Mapping[str, Any]) -> str:
    rows: Sequence[Row] = done["rows"]
    lines = [f"## {done['question']}", ""]
    if rows:
        table = [list(rows[0]), ["---"] * len(rows[0]), *([_shown(value) for value in row.values()] for row in rows)]
        lines += [f"| {' | '.join(cells)} |" for cells in table]
    else:
        lines.append(done["status"])
    return "\n".join(lines)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _ratio(one: float, other: float) -> float | None:
    return round(one / other, 4) if other else None


def _set(overrides: Iterable[str]) -> list[str]:
    return [part for override in overrides for part in ("--set", override)]


def _text(command: Command, day: Day) -> str:
    """Return a command as one would type it in the repository."""
    text = shlex.join(["python" if part == sys.executable else part for part in command])
    return text.replace(f"{day.folder}{os.sep}", f"{day.folder.name}{os.sep}")


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


@click.command()
@click.option("--list", "listed", is_flag=True, help="Show the pieces and their commands; carry out nothing.")
@click.option("--pretend", type=click.IntRange(min=1), help="With --list: as if N GPUs were here.", metavar="N")
@click.option("--rehearse", is_flag=True, help="Carry out all of it in small on the CPU; needs no GPU.")
@click.option("--only", multiple=True, metavar="PIECE", help="These pieces alone.")
@click.option("--again", is_flag=True, help="Carry out what is done once more.")
@click.option("--piece-minutes", default=10.0, show_default=True, help="The longest that a piece may take.")
@click.option("--minutes", default=float("inf"), help="Begin no piece after this time; the next call continues.")
@click.option("--folder", default=Path("runs/gpu"), show_default=True, type=click.Path(file_okay=False, path_type=Path))
def main(
    listed: bool,
    pretend: int | None,
    rehearse: bool,
    only: Sequence[str],
    again: bool,
    piece_minutes: float,
    minutes: float,
    folder: Path,
) -> None:
    """Carry out on this machine's GPUs what can be measured only there."""
    if pretend and not listed:
        raise click.UsageError("--pretend goes with --list: what is not here cannot be measured")
    click.echo("\n".join([f"torch {torch.__version__}", *_present()]))
    if not _installed("petra-graph"):
        raise click.ClickException(
            "petra-graph is not installed for this Python; without a network, beside its requirements: "
            "python -m pip install --no-deps --no-build-isolation --editable ."
        )
    folder = folder.resolve() if not rehearse else folder.resolve().with_name(f"{folder.name}-rehearsal")
    day = Day(folder=folder, gpus=pretend or torch.cuda.device_count(), rehearsal=rehearse)
    if not day.gpus and not rehearse:
        click.echo("no GPU is here, so nothing was measured; --list --pretend 1 shows what would be")
        raise SystemExit(1)
    if day.gpus == 1 and not rehearse:
        click.echo("one GPU is here: NCCL refuses two processes on one, so transports between GPUs are not measured")
    planned = pieces(day)
    if unknown := set(only) - {piece.name for piece in planned}:
        raise click.UsageError(
            f"no piece {', '.join(sorted(unknown))}; allowed: {', '.join(one.name for one in planned)}"
        )
    finished = set() if again else {name for name, one in results(day, planned).items() if one["status"] == "done"}
    if listed:
        _show_commands(day, planned, finished)
        return
    _carry_out_in_turn(day, [one for one in planned if one.name not in finished and one.name in (only or [one.name])],
                       60 * piece_minutes, time.monotonic() + 60 * minutes)  # fmt: skip
    found = results(day, planned)
    click.echo(f"\npage: {os.path.relpath(write_page(day, found.values()))}")
    if len(found) < len(planned) or any(one["status"] != "done" for one in found.values()):
        raise SystemExit(1)


def _present() -> Iterable[str]:
    """Yield a line of each GPU that is here."""
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        yield f"cuda:{index}: {found.name}, {memory(found.total_memory)}"


def _show_commands(day: Day, planned: Iterable[Piece], finished: Collection[str]) -> None:
    for piece in planned:
        click.echo(f"\n{piece.name}: {piece.question}{'  (done)' if piece.name in finished else ''}")
        for command in piece.commands:
            click.echo(f"  {_text(command, day)}")


def _carry_out_in_turn(day: Day, chosen: Sequence[Piece], seconds: float, end: float) -> None:
    """Carry pieces out, each in at most `seconds`, and begin none after `end`, a time of the monotonic clock."""
    for number, piece in enumerate(chosen, 1):
        if time.monotonic() > end:
            click.echo(f"\nthe time is over, and {len(chosen) - number + 1} pieces are left: call it again")
            return
        click.echo(f"\n{number}/{len(chosen)} {piece.name}: {piece.question}")
        found = carry_out(piece, day, seconds)
        click.echo(f"{found['status']}, {found['seconds']:g} s")
        for row in found["rows"]:
            click.echo("  " + ", ".join(f"{key}: {_shown(value)}" for key, value in row.items()))


if __name__ == "__main__":
    main()
