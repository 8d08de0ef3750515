"""Train the same specifications at two commits, and compare all weights and losses bit for bit.

    python tools/same_bits.py 919c694 WORKTREE
    python tools/same_bits.py 919c694 WORKTREE --only quick

Each commit's packages, the core and whatever lies in its plugins/, are written into a folder of their own, with metadata
made from their own pyproject.toml, and trained through the command line alone: modules, keys and distributions may have
other names in each. A case is equal where every tensor of weights.safetensors has the same bits, and every value of
metrics.jsonl but throughput is the same. Cases are in same_bits.toml, with what is spelt otherwise at OLD and at NEW. NEW
trains every case once for each list of `new_columns`, and all must equal OLD. Results of a commit are kept in the folder for
temporary files, since nothing changes them; those of WORKTREE never. The exit code is 1 where any case differs.
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
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
NEEDED = ("petra_graph", "plugins", "pyproject.toml")
TIMES = frozenset({"samples_per_second"})
"""Metrics that no two runs have in common."""
KEPT = Path(tempfile.gettempdir(), "same-bits")
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
    old: tuple[str, ...] = field(default=(), converter=tuple)
    """Settings as OLD alone spells them."""
    new: tuple[str, ...] = field(default=(), converter=tuple)
    """The same, as NEW spells them."""
    network: str = "conv"
    processes: int = 1
    launcher: bool = False
    """Whether `--processes` starts the processes."""
    killed_at: int = 0
    """The step at which SIGKILL ends all processes at NEW; `--resume` continues. 0: never, as at OLD always."""
    resumed_on: int = 1
    """Processes of the run that continues."""
    by_value: bool = False
    """Whether tensors are compared without their names, which differ; one that has several names counts once."""
    quick: bool = False

    @property
    def settings(self) -> str:
        """Return the network and what is set, in one line."""
        return " ".join([self.network, *self.set, *self.new])

    def has(self, text: str) -> bool:
        """Whether `--only` chooses this case."""
        return self.quick if text == "quick" else text in self.name or text in self.settings

    def steps(self, own: Iterable[str], *, killed: bool) -> list[dict[str, Any]]:
        """Return the commands of this training: arguments, processes, and the step at which they are killed."""
        words = [word for text in (*self.set, *own) for word in ("--set", text)]
        words = ["run", "spec.toml", *words, *(["--processes", str(self.processes)] if self.launcher else [])]
        first = {"arguments": words, "processes": 1 if self.launcher else self.processes, "killed_at": 0}
        if not killed or not self.killed_at:
            return [first]
        again = {"arguments": ["run", "--resume", "latest"], "processes": self.resumed_on, "killed_at": 0}
        return [{**first, "killed_at": self.killed_at}, again]


@frozen(kw_only=True)
class Side:
    """One commit, installed into a folder."""

    asked: str
    description: str
    """The commit's hash and subject."""
    folder: Path

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment in which this commit's packages are the ones that are imported."""
        own = {"PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        return {**os.environ, **own}


@frozen(kw_only=True)
class Result:
    """The files of a training that are compared."""

    weights: Mapping[str, str]
    """The digest of each tensor, with its type and shape."""
    metrics: Mapping[str, float | None]
    failure: str = ""

    @property
    def digest(self) -> str:
        """One digest of all weights."""
        return hashlib.sha256(json.dumps(self.weights, sort_keys=True).encode()).hexdigest()


@click.command()
@click.argument("old")
@click.argument("new")
@click.option("--only", metavar="TEXT", default="", help="Only cases with this in name or settings; `quick`: a dozen.")
@click.option("--at-once", type=click.IntRange(min=1), default=2, show_default=True, help="Cases at a time.")
def main(old: str, new: str, only: str, at_once: int) -> None:
    """Compare what OLD and NEW train: commits, or WORKTREE (or ".") for the files as they are."""
    listed = tomllib.loads(CASES.read_text(encoding="utf-8"))
    cases = [case for case in (Case(**case) for case in listed["cases"]) if case.has(only)]
    if not cases:
        raise Refused(f"no case has {only!r} in its name or settings")
    jobs: dict[str, dict[tuple[str, str], dict[str, Any]]] = {"OLD": {}, "NEW": {}}
    for case in cases:
        files = listed["networks"][case.network]
        jobs["OLD"]["OLD", case.name] = {"files": files, "steps": case.steps(case.old, killed=False)}
        for settings in listed["new_columns"]:
            label = " ".join(["NEW", *(text.partition("=")[2] for text in settings)])
            steps = case.steps((*case.new, *settings), killed=True)
            jobs["NEW"][label, case.name] = {"files": files, "steps": steps}
    found: dict[tuple[str, str], Result] = {}
    with tempfile.TemporaryDirectory(prefix="same-bits-") as name:
        for label, asked in (("OLD", old), ("NEW", new)):
            side = installed(asked, Path(name, label))
            click.echo(f"{label} {asked}: {side.description}")
            found |= trained(side, jobs[label], Path(name, f"{label}-runs"), at_once)
    rows = [compared(case, {label: one for (label, name), one in found.items() if name == case.name}) for case in cases]
    equal = sum(row["equal"] for row in rows)
    click.echo("\n".join([*table(rows), f"{equal} of {len(rows)} equal"]))
    sys.exit(equal < len(rows))


def installed(asked: str, folder: Path, needed: Sequence[str] = NEEDED) -> Side:
    """Write files of a commit into a folder, with the metadata that makes its packages distributions."""
    folder.mkdir()
    if asked in WORKTREE:
        description = f"the working tree, {_git('describe', '--always', '--dirty').decode().strip()}"
        listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *needed).decode()
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, folder / name)
    else:
        description = _git("log", "-1", "--format=%h %s", f"{asked}^{{commit}}", "--").decode().strip()
        with tarfile.open(fileobj=io.BytesIO(_git("archive", asked, "--", *needed))) as files:
            files.extractall(folder, filter="data")
    (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE, encoding="utf-8")
    projects = [folder / "pyproject.toml", *(folder / "plugins").glob("*/pyproject.toml")]
    for project in projects[1:]:
        for package in (*project.parent.glob("src/*"), *project.parent.glob("petra_graph_*")):
            (shutil.copytree if package.is_dir() else shutil.copyfile)(package, folder / package.name)
    # The first distribution of a name counts: an empty one hides what this interpreter has installed and the commit has not.
    declared: dict[str, Mapping[str, Any]] = {
        name: {} for one in metadata.distributions() if (name := one.name).startswith("petra-graph")
    }
    for project in projects:
        about = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        declared[about["name"]] = about.get("entry-points", {})
    for name, groups in declared.items():
        info = folder / f"{name.replace('-', '_')}-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n", encoding="utf-8")
        lines = [
            f"[{group}]\n" + "".join(f"{key} = {target}\n" for key, target in of.items())
            for group, of in groups.items()
        ]
        (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    return Side(asked=asked, description=description, folder=folder)


def trained(
    side: Side, jobs: Mapping[tuple[str, str], Any], folder: Path, at_once: int
) -> dict[tuple[str, str], Result]:
    """Carry out the jobs of a commit, and return each one's result by column and case; known ones are not trained again."""
    found, places = {}, {}
    commit = "" if side.asked in WORKTREE else side.description
    for number, (key, job) in enumerate(jobs.items()):
        content = json.dumps([commit, job, environment()], sort_keys=True).encode()
        kept = KEPT / f"{hashlib.sha256(content).hexdigest()}.json"
        if commit and kept.exists():
            known = json.loads(kept.read_text(encoding="utf-8"))
            found[key] = Result(weights=known["weights"], metrics=known["metrics"])
            continue
        place = folder / str(number)
        place.mkdir(parents=True)
        for name, text in job["files"].items():
            (place / name).write_text(text, encoding="utf-8")
        places[str(place)] = key, kept
    if places:
        listed = [{"folder": place, "steps": jobs[key]["steps"]} for place, (key, _) in places.items()]
        (folder / "jobs.json").write_text(json.dumps(listed), encoding="utf-8")
        command = [sys.executable, str(TRAININGS), "jobs.json", str(side.folder), str(at_once)]
        with subprocess.Popen(command, cwd=folder, env=side.variables, stdout=subprocess.PIPE, text=True) as process:
            for done, ended in enumerate(map(json.loads, process.stdout or ()), start=1):
                key, kept = places[ended["folder"]]
                found[key] = one = result(Path(ended["folder"]), ended["code"])
                said = f"{key[0]} {done}/{len(places)} ({ended['seconds']} s): {key[1]}{' FAILED' * bool(one.failure)}"
                click.echo(said, err=True)
                if commit and not one.failure:
                    KEPT.mkdir(exist_ok=True)
                    values = {"weights": one.weights, "metrics": one.metrics}
                    kept.write_text(json.dumps(values), encoding="utf-8")
    missing = Result(weights={}, metrics={}, failure="it was never trained")
    return {key: found.get(key, missing) for key in jobs}


def result(place: Path, code: int) -> Result:
    """Read the weights and metrics in a training's folder."""
    runs = list(place.glob("runs/*"))
    if code or len(runs) != 1:
        errors = "".join(path.read_text(encoding="utf-8") for path in sorted(place.glob("errors-[0-9]*.txt")))
        failure = f"exit code {code}, {len(runs)} run directories\n{errors}".strip()
        return Result(weights={}, metrics={}, failure=failure)
    return Result(weights=weights(runs[0] / "weights.safetensors"), metrics=metrics(runs[0]))


def weights(path: Path) -> dict[str, str]:
    """Return the digest of each tensor in a safetensors file, with its type and shape.

    The file is read here and not by its library, which needs torch for some types: eight bytes for the header's length,
    the header in JSON, then the tensors' bytes.
    """
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    header.pop("__metadata__", None)
    found = {}
    for name, about in sorted(header.items()):
        first, last = about["data_offsets"]
        digest = hashlib.sha256(content[begin + first : begin + last]).hexdigest()
        found[name] = f"{about['dtype']} {about['shape']} {digest}"
    return found


def metrics(run: Path) -> dict[str, float | None]:
    """Return the values of metrics.jsonl by epoch, step and name; a repeated key gets a number."""
    found: dict[str, float | None] = {}
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
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
    differences = {label: list(different(first, other, by_value=case.by_value)) for label, other in others}
    return {
        "case": case.name,
        "settings": case.settings,
        "processes": f"--processes {case.processes}" if case.launcher else str(case.processes),
        "digests": {label: "" if one.failure else one.digest for label, one in results.items()},
        "equal": not any(differences.values()),
        "differences": differences,
    }


def different(one: Result, other: Result, *, by_value: bool = False) -> Iterator[str]:
    """Name the differences of two results; a failed training equals no other."""
    if one.failure or other.failure:
        yield from (f"{word}failed: {of.failure}" for word, of in (("OLD ", one), ("", other)) if of.failure)
    elif not one.weights or not one.metrics:
        yield "nothing was written"
    for kind in ("weights", "metrics"):
        ours, theirs = getattr(one, kind), getattr(other, kind)
        if by_value and kind == "weights":
            ours, theirs = (dict.fromkeys(sorted(of.values())) for of in (ours, theirs))
        # repr: a number equals itself alone, by its digits.
        names = [name for name in {**ours, **theirs} if repr(ours.get(name, ...)) != repr(theirs.get(name, ...))]
        if names:
            yield f"{len(names)} of {len({**ours, **theirs})} {kind}, first {names[0]}"


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Write the table, and the differences below it."""
    labels = list(rows[0]["digests"])
    heads = ["case", "settings", "processes", *labels, "equal"]
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        digests = [row["digests"][label][:10] or "failed" for label in labels]
        cells = [row["case"], row["settings"], row["processes"], *digests, "yes" if row["equal"] else "NO"]
        yield "| " + " | ".join(cells) + " |"
    for row in rows:
        for label, differences in row["differences"].items():
            yield from (f"{row['case']}, {label}: {difference}" for difference in differences)


def environment() -> dict[str, Any]:
    """Return what bits depend on beside the code."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "isa": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
        **{name: metadata.version(name) for name in ("torch", "torchvision", "numpy", "safetensors")},
    }


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], check=False, capture_output=True)
    if done.returncode:
        raise Refused(f"git {arguments[0]}: {done.stderr.decode().strip()}")
    return done.stdout


if __name__ == "__main__":
    main()
