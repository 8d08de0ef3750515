"""A run's directory as a reader finds it: done, under way, failed, killed; without torch.

done, interrupted, failed     as its summary says
running                       a process holds the directory's lock
killed                        neither: no process was left that could write a summary
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from attrs import define, frozen

from petra_graph.errors import SpecError
from petra_graph.plugins.loss_and_metric import Scale, scale_of, scales_in
from petra_graph.record.run_directory import METRICS, SCALES, SUMMARY, damaged, is_locked, read_json
from petra_graph.spec.load_spec import parse_override


@frozen(kw_only=True)
class Point:
    """A metric's value; steps are micro-batches since the run's start."""

    epoch: int
    step: int
    value: float


@frozen(kw_only=True)
class Best:
    """The best value of the metric by which a run is judged, and the epoch that it is of."""

    metric: str
    value: float
    epoch: int


@define(kw_only=True)
class RecordedRun:
    """A run that has begun to train."""

    directory: Path
    name: str  # of the specification
    seed: int
    resolved: Mapping[str, Any]  # the specification with every default
    status: str  # as above
    summary: Mapping[str, Any]  # of its latest end; empty where it has none
    metrics: Mapping[str, Sequence[Point]]  # the events by name, in order
    scales: Mapping[str, Scale]  # how the values of its metrics are read
    epochs: int  # those that are done
    planned_epochs: int
    processes: Sequence[Mapping[str, Any]]  # what they have measured; () before the end

    @property
    def rate(self) -> float | None:
        """Samples a second: of all its training, or of its latest epoch where it has no summary."""
        return self.summary.get("samples_per_second") or self.last("samples_per_second")

    @property
    def best(self) -> Best | None:
        """The best value of `checkpoint.best`, or of top1 or else the loss of the evaluations; None where none was measured yet."""
        split = "validation" if "validation" in self.resolved.get("data", {}) else "test"
        usual = f"{split}/top1" if f"{split}/top1" in self.metrics else f"{split}/loss"
        metric = self.resolved.get("checkpoint", {}).get("best", usual)
        if not (points := self.metrics.get(metric)):
            return None
        smallest = scale_of(metric, self.scales).better == "lower"
        found = min(points, key=lambda point: point.value if smallest else -point.value)
        return Best(metric=metric, value=found.value, epoch=found.epoch)

    def last(self, metric: str) -> float | None:
        """Return the latest value of a metric."""
        return points[-1].value if (points := self.metrics.get(metric)) else None


def grown_bytes(process: Mapping[str, Any]) -> int:
    """Return what a process grew by, as it has measured itself; on GPUs, what torch's allocator has handed out there."""
    return sum(process["cuda_peak_bytes"].values()) or process["peak_bytes"] - process["peak_bytes_before"]


def status_of(directory: Path) -> str:
    """Return how a run stands, as above; raise SpecError if its summary is damaged."""
    # The lock is looked at first: a run that ends meanwhile has written its summary before it lets go.
    if is_locked(directory):
        return "running"
    return str(read_json(directory / SUMMARY).get("status", "killed"))


def read_run(directory: Path) -> RecordedRun:
    """Read a run's directory, also while it trains; raise SpecError if it is not a run's, or one of its files is damaged."""
    try:
        text, events = ((directory / name).read_bytes() for name in ("resolved.toml", METRICS))
    except OSError:
        message = f"{directory} is not a run's directory: it has no resolved.toml and metrics.jsonl"
        raise SpecError(message, "name one that `petra-graph run` has made") from None
    metrics = defaultdict[str, list[Point]](list)
    try:
        for line in events[: events.rfind(b"\n") + 1].splitlines():  # the last one may be written at this moment
            event = json.loads(line)
            if event["value"] is not None:  # it was not finite
                point = Point(epoch=int(event["epoch"]), step=int(event["step"]), value=float(event["value"]))
                metrics[str(event["name"])].append(point)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise damaged(directory / METRICS, error) from None
    try:
        resolved = tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise damaged(directory / "resolved.toml", error) from None
    status, summary, scales = status_of(directory), read_json(directory / SUMMARY), read_json(directory / SCALES)
    try:
        run = RecordedRun(
            directory=directory,
            name=resolved["name"],
            seed=int(resolved["run"]["seed"]),
            resolved=resolved,
            status=status,
            summary=summary,
            metrics=dict(metrics),
            scales=scales_in(scales),
            epochs=max((point.epoch for point in metrics.get("learning_rate", ())), default=0),
            planned_epochs=int(resolved["run"]["epochs"]),
            processes=(summary.get("measured") or {}).get("processes", ()),
        )
        # Reports join and add these values: what a hand has written in their place raises here, and not in the list of all runs.
        words = [
            summary.get("status", ""),
            (summary.get("test_weights") or {}).get("weights", ""),
            *summary.get("error", []),
        ]
        "".join([run.name, *words, *chain(*resolved["partition"]["stages"])])
        stages = [stage for process in run.processes for stage in process["stages"]]
        timed = [verb for stage in stages for verb in stage.values() if isinstance(verb, dict)]
        figures = [*(stage["stage"] for stage in stages), *chain(*(verb.values() for verb in timed))]
        sum([run.rate or 0.0, run.best.value if run.best else 0.0, *map(grown_bytes, run.processes), *figures])
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise damaged(directory, error) from None
    return run


LATEST, RUNS = (
    "latest",
    "runs",
)  # the name of the latest run, and the folder of runs where a specification names no other
_STAMP = re.compile(r"(\d{8}T\d{6}Z)-.+")


def find_run(name: str, parent: Path = Path(RUNS)) -> Path:
    """Return a run's directory: the one that is named, here or in `parent`, or "latest": the latest one in `parent`. Raises SpecError if it does not exist."""
    if name == LATEST:
        if not (found := [path for path in parent.glob("*") if path.is_dir() and is_run(path)]):
            raise SpecError(f"there is no run in {parent}", "give the directory of a run")
        return max(found, key=lambda one: (began(one), one.stat().st_mtime))
    directory = Path(name).expanduser()
    if not directory.exists():
        directory = parent / directory
    if not directory.is_dir():
        raise SpecError(f"there is no run directory {name}", "give the directory of a run, or `latest`")
    return directory


def directory_to_resume(resume: str, overrides: Iterable[str]) -> Path:
    """Return the directory of the run to resume, where "latest" is the latest below `run.directory`, as overrides set it."""
    given = {override.keys: str(override.value) for override in map(parse_override, overrides)}
    return find_run(resume, Path(given.get(("run", "directory"), RUNS)).expanduser())


def run_directories(folder: Path) -> list[Path]:
    """Return the directories of runs in a folder, or the folder itself where it is a run; a damaged one counts."""
    try:
        found = [folder] if is_run(folder) else sorted(folder.iterdir())
    except OSError as error:
        message = f"cannot read the folder {folder}: {error.strerror or error}"
        raise SpecError(message, "name the folder that holds runs: `run.directory` of their specs") from None
    return [path for path in found if path.is_dir() and is_run(path)]


def began(directory: Path) -> datetime:
    """Return when a run began, as its directory's name says; or when the directory of another name was written."""
    if stamp := _STAMP.fullmatch(directory.name):
        return datetime.strptime(f"{stamp[1]}+0000", "%Y%m%dT%H%M%SZ%z")
    return datetime.fromtimestamp(directory.stat().st_mtime, UTC)


def is_run(path: Path) -> bool:
    """Whether this is a run's directory; a damaged one is."""
    return _STAMP.fullmatch(path.name) is not None or (path / METRICS).is_file()
