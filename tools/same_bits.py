"""Train the same specifications at two commits, and compare all weights and losses bit for bit.

    python tools/same_bits.py 32ad59f WORKTREE

Each commit's package is written into a folder of its own, with metadata made from its own pyproject.toml, and trained
through its command line alone, so that modules and their internals may have other names in each. A case is equal where
every tensor of weights.safetensors has the same bits, and every value of metrics.jsonl but throughput is the same. Keys of
the specification that were renamed are taken from each commit's own schema; where NEW knows `run.scheduling`, every case is
trained at NEW once with each of its values, and all must equal OLD. The cases are in same_bits.toml. The exit code is 1
where any differs.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import click
from attrs import field, frozen

ROOT = Path(__file__).parents[1]
CASES = Path(__file__).with_suffix(".toml")
TRAININGS = Path(__file__).with_name("trainings.py")
WORKTREE = (".", "WORKTREE")
"""Names of the working tree, which stand in the place of a commit."""
NEEDED = ("petra_graph", "plugins", "specs/petra-graph.schema.json", "pyproject.toml")
"""The files of a commit that a training needs."""
RENAMED = {
    "precision.wire_dtype": "precision.channel_dtype",
    **{
        f"optimizer.delay.{key}": f"optimizer.options.{key}" for key in ("correction", "predict", "correct_discrepancy")
    },
}
"""Keys of same_bits.toml, and their spelling in a schema that does not have them."""
DISTRIBUTIONS = ("authoring", "conformance", "delay", "export", "modules", "report", "studies", "vision")
"""Those of plugins/ that are installed beside the core, where a commit has them."""
SCHEDULING = "run.scheduling"
TIMES = frozenset({"samples_per_second"})
"""Metrics that no two runs have in common."""
_SITECUSTOMIZE = """\
import sys

# An editable installation's finder would supply modules that this commit does not have.
sys.meta_path[:] = [finder for finder in sys.meta_path if "petra_graph" not in getattr(finder, "__module__", "")]
"""


class Refused(click.ClickException):
    """The comparison cannot be made."""


@frozen(kw_only=True)
class Case:
    """One training."""

    name: str
    set: tuple[str, ...] = field(converter=tuple)
    network: str = "conv"
    processes: int = 1
    launcher: bool = False
    """Whether `--processes` starts the processes."""
    refused_under: str = ""
    """The value of `run.scheduling` that a specification refuses beside these settings."""

    @property
    def settings(self) -> str:
        """Return the network and what is set, in one line."""
        return " ".join([self.network, *self.set])


@frozen(kw_only=True)
class Side:
    """One commit, installed into a folder."""

    asked: str
    description: str
    """The commit's hash and subject."""
    folder: Path
    schema: Mapping[str, Any]

    def knows(self, key: str) -> bool:
        """Whether this commit's specifications have a key, as in "run.seed"."""
        found: Mapping[str, Any] = self.schema
        for name in key.split("."):
            if name not in found.get("properties", {}):
                return False
            found = found["properties"][name]
        return True

    def setting(self, text: str) -> str:
        """Spell a setting as this commit does."""
        key, _, value = text.partition("=")
        if key in RENAMED and not self.knows(key):
            key = RENAMED[key]
        return f"{key}={value}"

    @property
    def schedulings(self) -> tuple[str, ...]:
        """The values of `run.scheduling`, none where it is not known."""
        if not self.knows(SCHEDULING):
            return ()
        return tuple(self.schema["properties"]["run"]["properties"]["scheduling"]["enum"])


@frozen(kw_only=True)
class Result:
    """The files of a training that are compared."""

    weights: Mapping[str, str]
    """The digest of each tensor, with its type and shape."""
    metrics: Mapping[str, float | None]
    failure: str = ""
    seconds: float = 0.0

    @property
    def digest(self) -> str:
        """One digest of all weights."""
        return hashlib.sha256(json.dumps(self.weights, sort_keys=True).encode()).hexdigest()


@frozen(kw_only=True)
class Batch:
    """All cases at one commit: a column of the table."""

    side: Side
    label: str
    scheduling: str
    """The value of `run.scheduling`; empty: the default."""
    folder: Path

    def trained(self, networks: Mapping[str, str], cases: Sequence[Case], at_once: int) -> dict[str, Result]:
        """Train the cases and return each one's result by its name."""
        names = {}
        jobs = []
        cases = [case for case in cases if not self.scheduling or case.refused_under != self.scheduling]
        for number, case in enumerate(cases):
            place = self.folder / str(number)
            place.mkdir(parents=True)
            (place / "spec.toml").write_text(networks[case.network])
            names[str(place)] = case.name
            jobs.append(self._job(case, place))
        if not jobs:
            return {}
        (self.folder / "jobs.json").write_text(json.dumps(jobs))
        found = {}
        for ended in self._carried_out(at_once):
            name = names[ended["folder"]]
            found[name] = result(Path(ended["folder"]), ended["code"], ended["seconds"])
            click.echo(f"{self.label} {len(found)}/{len(cases)} ({ended['seconds']} s): {name}", err=True)
        missing = Result(weights={}, metrics={}, failure="it was never trained")
        return {case.name: found.get(case.name, missing) for case in cases}

    def _job(self, case: Case, place: Path) -> dict[str, Any]:
        settings = [self.side.setting(text) for text in case.set]
        if self.scheduling:
            settings.append(f"{SCHEDULING}={self.scheduling}")
        arguments = ["run", "spec.toml", *(word for text in settings for word in ("--set", text))]
        if case.launcher:
            arguments += ["--processes", str(case.processes)]
        return {"folder": str(place), "arguments": arguments, "processes": 1 if case.launcher else case.processes}

    def _carried_out(self, at_once: int) -> Iterator[dict[str, Any]]:
        """Yield how each job ended, as soon as it has."""
        command = [sys.executable, str(TRAININGS), "jobs.json", str(self.side.folder), str(at_once)]
        with subprocess.Popen(
            command, cwd=self.folder, env=variables(self.side), stdout=subprocess.PIPE, text=True
        ) as process:
            yield from map(json.loads, process.stdout or ())


@click.command()
@click.argument("old")
@click.argument("new")
@click.option("--only", metavar="TEXT", default="", help="Only cases that have this in their names or settings.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write everything as JSON, too.")
@click.option("--at-once", type=click.IntRange(min=1), default=2, show_default=True, help="Cases at a time.")
def main(old: str, new: str, only: str, output: Path | None, at_once: int) -> None:
    """Compare what OLD and NEW train: commits, or WORKTREE (or ".") for the files as they are."""
    networks, cases = read_cases(only)
    with tempfile.TemporaryDirectory(prefix="same-bits-") as name:
        before = installed(old, Path(name, "old"))
        after = installed(new, Path(name, "new"))
        for label, side in (("OLD", before), ("NEW", after)):
            check_installation(side)
            click.echo(f"{label} {side.asked}: {side.description}")
        columns: dict[str, Mapping[str, Result]] = {}
        for label, side, scheduling in columns_of(before, after):
            batch = Batch(side=side, label=label, scheduling=scheduling, folder=Path(name, label))
            columns[label] = batch.trained(networks, cases, at_once)
    rows = [
        compared(case, {label: column[case.name] for label, column in columns.items() if case.name in column})
        for case in cases
    ]
    equal = sum(row["equal"] for row in rows)
    click.echo("\n".join([*table(rows, tuple(columns)), f"{equal} of {len(rows)} equal"]))
    if output is not None:
        found = {"old": before.description, "new": after.description, **environment(), "cases": rows}
        output.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(equal < len(rows))


def columns_of(before: Side, after: Side) -> Iterator[tuple[str, Side, str]]:
    """Yield each column's label, commit and value of `run.scheduling`; the first is what the others must equal."""
    yield "OLD", before, ""
    for scheduling in after.schedulings or ("",):
        yield f"NEW {scheduling}".strip(), after, scheduling


def read_cases(only: str) -> tuple[Mapping[str, str], list[Case]]:
    """Return the networks' specifications by name, and the cases that contain the text `only`."""
    listed = tomllib.loads(CASES.read_text())
    cases = [Case(**case) for case in listed["cases"]]
    found = [case for case in cases if only in case.name or only in case.settings]
    if not found:
        raise Refused(f"no case has {only!r} in its name or settings")
    return listed["networks"], found


def installed(asked: str, folder: Path, root: Path = ROOT) -> Side:
    """Write the package of a commit of the repository `root` into a folder, with the metadata that makes it a distribution."""
    folder.mkdir()
    if asked in WORKTREE:
        description = f"the working tree, {_git(root, 'describe', '--always', '--dirty')}"
        _copy_working_tree(root, folder)
    else:
        description = _git(root, "log", "-1", "--format=%h %s", f"{asked}^{{commit}}", "--")
        archive = io.BytesIO(_git_bytes(root, "archive", asked, "--", *NEEDED))
        with tarfile.open(fileobj=archive) as files:
            files.extractall(folder, filter="data")
    (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    _write_metadata(folder, "petra-graph", folder / "pyproject.toml")
    for short in DISTRIBUTIONS:
        place = folder / "plugins" / f"petra-graph-{short}"
        _write_metadata(folder, place.name, place / "pyproject.toml")
        for package in place.glob("src/*"):
            shutil.copytree(package, folder / package.name)
    schema = json.loads((folder / "specs/petra-graph.schema.json").read_text())
    return Side(asked=asked, description=description, folder=folder, schema=schema)


def _copy_working_tree(root: Path, folder: Path) -> None:
    """Copy the files that git tracks or would add."""
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *NEEDED)
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, folder / name)


def _write_metadata(folder: Path, name: str, project: Path) -> None:
    """Make a distribution's metadata; plugins are found by its entry points. One that a commit does not have has none, and hides the installed one."""
    groups = tomllib.loads(project.read_text())["project"].get("entry-points", {}) if project.exists() else {}
    info = folder / f"{name.replace('-', '_')}-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in groups.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


def check_installation(side: Side) -> None:
    """Check that Python imports this folder's package, and finds the plugins that it declares."""
    imported = _output(side, "-c", "import petra_graph; print(petra_graph.__file__)").strip()
    if not Path(imported).is_relative_to(side.folder):
        raise Refused(f"{side.asked}: {imported} would be imported instead of {side.folder}")
    listed = json.loads(_output(side, "-m", "petra_graph", "list", "--json"))
    own = [plugin for plugin in listed if plugin["distribution"] == "petra-graph"]
    found = sorted((plugin["group"], plugin["name"]) for plugin in own if not plugin["fault"])
    groups = tomllib.loads((side.folder / "pyproject.toml").read_text())["project"]["entry-points"]
    declared = sorted((group.partition(".")[2], name) for group, entries in groups.items() for name in entries)
    if found != declared:
        raise Refused(f"{side.asked}: plugins found are {found}, and declared are {declared}")


def _output(side: Side, *arguments: str) -> str:
    """Return what Python prints where a commit's package is the one that is imported."""
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, check=False, cwd=side.folder.parent, env=variables(side), capture_output=True, text=True
    )
    if done.returncode:
        raise Refused(f"{side.asked}: {' '.join(arguments)} failed:\n{done.stderr}")
    return done.stdout


def variables(side: Side) -> dict[str, str]:
    """Return the environment in which a commit's package is the one that is imported."""
    return {
        **os.environ,
        "PYTHONPATH": str(side.folder),
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }


def result(place: Path, code: int, seconds: float) -> Result:
    """Read the weights and metrics in a training's folder."""
    runs = list(place.glob("runs/*"))
    if code or len(runs) != 1:
        errors = "".join(path.read_text() for path in sorted(place.glob("errors-[0-9]*.txt")))
        failure = f"exit code {code}, {len(runs)} run directories\n{errors}".strip()
        return Result(weights={}, metrics={}, failure=failure, seconds=seconds)
    return Result(weights=weights(runs[0] / "weights.safetensors"), metrics=metrics(runs[0]), seconds=seconds)


def weights(path: Path) -> dict[str, str]:
    """Return the digest of each tensor in a safetensors file, with its type and shape.

    The file is read here and not by its library, which needs torch for some types: eight bytes for the header's length,
    the header in JSON, then the tensors' bytes.
    """
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    header.pop("__metadata__", None)
    return {name: _tensor(about, content[begin:]) for name, about in sorted(header.items())}


def _tensor(about: Mapping[str, Any], content: bytes) -> str:
    first, last = about["data_offsets"]
    return f"{about['dtype']} {about['shape']} {hashlib.sha256(content[first:last]).hexdigest()}"


def metrics(run: Path) -> dict[str, float | None]:
    """Return the values of metrics.jsonl by epoch, step and name; a repeated key gets a number."""
    found: dict[str, float | None] = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["name"] in TIMES:
            continue
        key = f"{event['name']} of epoch {event['epoch']}, step {event['step']}"
        again = sum(other.partition(" again")[0] == key for other in found)
        found[f"{key} again {again}" if again else key] = event["value"]
    return found


def compared(case: Case, results: Mapping[str, Result]) -> dict[str, Any]:
    """Return a row of the table: the first result is what all others must equal."""
    (_, first), *others = results.items()
    differences = {label: list(different(first, other)) for label, other in others}
    return {
        "case": case.name,
        "settings": case.settings,
        "processes": f"--processes {case.processes}" if case.launcher else str(case.processes),
        "digests": {label: "" if one.failure else one.digest for label, one in results.items()},
        "seconds": {label: one.seconds for label, one in results.items()},
        "tensors": len(first.weights),
        "metrics": len(first.metrics),
        "equal": not any(differences.values()),
        "differences": differences,
    }


def different(one: Result, other: Result) -> Iterator[str]:
    """Name the differences of two results; a failed training equals no other."""
    if one.failure or other.failure:
        yield from (f"{word}failed: {of.failure}" for word, of in (("OLD ", one), ("", other)) if of.failure)
    elif not one.weights or not one.metrics:
        yield "nothing was written"
    for kind in ("weights", "metrics"):
        ours, theirs = getattr(one, kind), getattr(other, kind)
        names = [name for name in {**ours, **theirs} if _missing_or(ours, name) != _missing_or(theirs, name)]
        if names:
            yield f"{len(names)} of {len({**ours, **theirs})} {kind}, first {names[0]}"


def _missing_or(values: Mapping[str, Any], name: str) -> tuple[bool, str]:
    """Return a value so that it equals itself alone: by its digits, whether or not it is there."""
    return name in values, repr(values.get(name))


def table(rows: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> Iterator[str]:
    """Write the table, and the differences below it."""
    heads = ["case", "settings", "processes", *labels, "equal"]
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        digests = [row["digests"].get(label, "refused")[:10] or "failed" for label in labels]
        cells = [row["case"], row["settings"], row["processes"], *digests, "yes" if row["equal"] else "NO"]
        yield "| " + " | ".join(cells) + " |"
    for row in rows:
        for label, differences in row["differences"].items():
            yield from (f"{row['case']}, {label}: {difference}" for difference in differences)


def environment() -> dict[str, Any]:
    """Return the versions that bits depend on beside the code."""
    packages = ("torch", "torchvision", "numpy", "safetensors")
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        **{name: metadata.version(name) for name in packages},
    }


def _git(root: Path, *arguments: str) -> str:
    return _git_bytes(root, *arguments).decode().strip()


def _git_bytes(root: Path, *arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", str(root), *arguments], check=False, capture_output=True)
    if done.returncode:
        raise Refused(f"git {arguments[0]}: {done.stderr.decode().strip()}")
    return done.stdout


if __name__ == "__main__":
    main()
