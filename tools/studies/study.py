"""Many runs of one specification, side by side: what is finished is not repeated.

A study is a list of cases, each a name and a few overrides; a case's runs lie in OUTPUT/runs/CASE. One that ended as it
should, and that resolves to what is asked for now, is taken as it is, and one that was interrupted, failed or was killed continues from
its checkpoint of the last epoch, so an interrupted study continues where it stopped. Every run is a process of its own, with one thread, as a user's would be.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
from attrs import evolve, frozen

from petra_graph.errors import Interrupted
from petra_graph.planning.check.check_spec import check_spec
from petra_graph.record.checkpoint import repair
from petra_graph.record.recorded_run import run_directories
from petra_graph.record.run_directory import environment
from petra_graph.spec.load_spec import dump, load
from petra_graph.spec.model import Spec
from petra_graph.spec.run_tables import CheckpointSpec
from petra_graph.training.prepare import prepare
from petra_graph.training.resolved_spec import resolved

F = TypeVar("F", bound=Callable[..., Any])

_CHECKPOINTS = ("checkpoint.every=1 epoch", "checkpoint.keep=1")
"""Of every run, so that a kill takes an epoch at most."""


@frozen(kw_only=True)
class Size:
    """How much of a study is done: the paper's own, or as much as a machine can bear."""

    spec: str
    overrides: tuple[str, ...] = ()
    help: str


SIZES = {
    "quick": Size(
        spec="specs/quickstart.toml",
        overrides=("run.epochs=5",),
        help="handwritten digits, five epochs: two minutes on a CPU",
    ),
    "small": Size(
        spec="specs/revnet18_quarter_cifar10_images.toml",
        overrides=("architecture.options.width=0.125", "run.epochs=6"),
        help="CIFAR-10 from a folder of images, RevNet18 of width 8, six epochs, micro-batches of 32: "
        "a quarter of an hour a run on one CPU core",
    ),
    "paper": Size(spec="specs/revnet18_cifar10.toml", help="RevNet18, 300 epochs, micro-batches of 64: for GPUs"),
}


@frozen(kw_only=True)
class Case:
    """One run of a study."""

    name: str
    """Names its folder, so it tells the case from all others of the study."""
    overrides: tuple[str, ...]


@frozen(kw_only=True)
class Done:
    """What a finished case gives."""

    case: Case
    directory: Path

    def accuracies(self) -> list[float]:
        """Return the test accuracy after each evaluation, in percent."""
        return series(self.directory, "test/top1", 100)


def study_options(name: str) -> Callable[[F], F]:
    """Give a study's command the options that all of them have."""
    sizes = "; ".join(f"{key}: {size.help}" for key, size in SIZES.items())
    options = (
        click.option(
            "--size",
            type=click.Choice(list(SIZES)),
            default="quick",
            show_default=True,
            help=sizes,
        ),
        click.option("--spec", help="A specification instead of the size's."),
        click.option("--set", "overrides", multiple=True, help="An override of all runs, as in --set run.epochs=3."),
        click.option("--seeds", default=1, show_default=True, help="Seeds 0, 1, ... of each case."),
        click.option("--jobs", default=1, show_default=True, help="Runs at a time, of one thread each."),
        click.option(
            "--output",
            type=click.Path(file_okay=False, path_type=Path),
            default=Path("runs") / name,
            show_default=True,
            help="Folder of the runs and of the results.",
        ),
    )

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@frozen(kw_only=True)
class Study:
    """A specification, and where its cases go."""

    spec: str
    overrides: tuple[str, ...]
    output: Path
    jobs: int = 1
    until: float | None = None
    """When runs are interrupted, in seconds of `time.monotonic`; they continue when the study is carried out again."""

    @classmethod
    def of(cls, size: str, spec: str | None, overrides: Iterable[str], output: Path, jobs: int) -> Study:
        """Make it from the options; a specification of the caller's own takes none of the size's overrides."""
        chosen = SIZES[size]
        given = tuple(overrides)
        return cls(
            spec=spec or chosen.spec,
            overrides=given if spec else (*chosen.overrides, *given),
            output=output,
            jobs=jobs,
        )

    def carry_out(self, cases: Sequence[Case]) -> dict[str, Done]:
        """Run what is not finished, and return all cases by name.

        Raises:
            SpecError: a case is no valid specification; nothing has been run then.
            click.ClickException: a run failed, or the time was over; the others were finished first.
        """
        for case in cases:
            check_spec(self.spec, self._arguments(case), import_local=True)
        found = {case.name: self._finished(case) for case in cases}
        missing = [case for case in cases if found[case.name] is None]
        click.echo(f"{len(cases) - len(missing)} of {len(cases)} runs are finished", err=True)
        failed: list[str] = []
        with ThreadPoolExecutor(self.jobs) as pool:
            for future in as_completed([pool.submit(self._run, case, self._what(case)) for case in missing]):
                case, code = future.result()
                if code:
                    failed.append(f"{case.name} (exit code {code}, {self._log(case)})")
                else:
                    found[case.name] = Done(case=case, directory=_runs(self._folder(case), "done")[-1])
        if failed:
            raise click.ClickException(f"not finished: {'; '.join(failed)}")
        return {name: done for name, done in found.items() if done is not None}

    def facts(self) -> dict[str, Any]:
        """Return what every result says of its origin."""
        return {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "spec": self.spec,
            "overrides": [text for text in self.overrides if not text.startswith("data.options.root=")],
            "environment": {key: value for key, value in environment().items() if key != "command"},
        }

    def latest_run(self, case: Case) -> Path | None:
        """Return the newest run directory of a case, whatever became of the run."""
        folder = self._folder(case)
        return max(run_directories(folder), default=None) if folder.exists() else None

    def _arguments(self, case: Case) -> tuple[str, ...]:
        return (*_CHECKPOINTS, *self.overrides, *case.overrides, f"run.directory={self._folder(case)}")

    def _folder(self, case: Case) -> Path:
        return self.output / "runs" / case.name

    def _log(self, case: Case) -> Path:
        return self._folder(case) / "output.txt"

    def _resolved(self, case: Case) -> str:
        return _numbers(resolved(prepare(self.spec, self._arguments(case))))

    def _finished(self, case: Case) -> Done | None:
        """Return what a finished run gives; only such a run is compared, since preparing a case opens its data."""
        if not (ended := _runs(self._folder(case), "done")):
            return None
        if not self._is_of(ended[0], case):
            message = f"{ended[0]} is a finished run of other settings"
            raise click.ClickException(f"{message}; name another --output, or remove it")
        return Done(case=case, directory=ended[0])

    def _is_of(self, directory: Path, case: Case) -> bool:
        loaded = load(str(directory / "resolved.toml")).spec
        return loaded is not None and _numbers(loaded) == self._resolved(case)

    def _run(self, case: Case, what: Sequence[str]) -> tuple[Case, int]:
        self._folder(case).mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "petra_graph", "run", *what]
        seconds = None if self.until is None else self.until - time.monotonic()
        if seconds is not None and seconds <= 0:
            return case, Interrupted.exit_code
        with self._log(case).open("w") as log:
            running = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})
            try:
                code = running.wait(seconds)
            except subprocess.TimeoutExpired:
                running.terminate()  # SIGINT is ignored under nohup, and in the background of a shell
                code = running.wait()
        click.echo(f"{case.name}: {'done' if code == 0 else f'exit code {code}'}", err=True)
        return case, code

    def _what(self, case: Case) -> Sequence[str]:
        """Return the words that continue the latest unfinished run of the same settings that has a checkpoint, or that begin one."""
        folder = self._folder(case)
        for begun in reversed(run_directories(folder) if folder.exists() else []):
            if repair(begun) and self._is_of(begun, case):
                return ("--resume", str(begun))
        return (self.spec, *(word for text in self._arguments(case) for word in ("--set", text)))


def series(run: Path, name: str, scale: float = 1.0) -> list[float]:
    """Return a run's metric, times `scale`, in the order in which it was recorded."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [round(scale * event["value"], 4) for event in events if event["name"] == name]


def write_results(output: Path, name: str, results: Mapping[str, Any]) -> Path:
    """Write a study's JSON file, whole."""
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{name}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(results, indent=2) + "\n")
    partial.replace(path)
    return path


def _numbers(spec: Spec) -> str:
    """Write a resolved specification without what changes no number."""
    return dump(evolve(spec, name="run", run=evolve(spec.run, directory="runs"), checkpoint=CheckpointSpec()))


def _runs(folder: Path, status: str) -> list[Path]:
    """Return the run directories of a case that ended in a way, the oldest first."""
    summaries = sorted(folder.glob("*/summary.json"))
    return [summary.parent for summary in summaries if json.loads(summary.read_text())["status"] == status]
