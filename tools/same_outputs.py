"""Give the same command lines to two commits, and compare all that they print and write, word for word.

    python tools/same_outputs.py compare 32ad59f WORKTREE
    python tools/same_outputs.py record 32ad59f FOLDER
    python tools/same_outputs.py compare FOLDER WORKTREE --root ANOTHER_WORKTREE

The lines are in same_outputs.toml: some are written there, most are what tests call, with the files that these wrote. Exit
codes, standard output, errors and text files must be equal but for what no two runs have in common: times, speeds, names of
run folders, versions, and where in petra_graph a line of code stands. A recorded side has its lines with it. The exit code
is 1 where any differs.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from same_bits import Refused, Side, check_installation, environment, installed, variables

ROOT = Path(__file__).parents[1]
CASES = Path(__file__).with_suffix(".toml")
COMMAND_LINES = Path(__file__).with_name("command_lines.py")
READ_BY_LINES = ("specs", "tests")
"""Folders of this repository that both sides read."""
_RECORDED = "outputs.json"
_MOST_LINES = 40
"""Of a difference, that are printed."""

Case = Mapping[str, Any]
"""A name, and lines that share a folder."""
Outputs = Mapping[str, Any]
"""What a side printed and wrote, by case."""

_RUN = re.compile(r"\d{8}T\d{6}Z-[\w.-]+?-[0-9a-f]{6}\b")
_NUMBER = r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?"
_MEASURED = "age_seconds|metrics_bytes|peak_bytes|peak_bytes_before|pid|samples_per_second|seconds|time|training_seconds|total|training"
_ANY, _MANIFEST, _AGES, _DOCTOR = "", r"/manifest\.json$", r"petra-graph runs\b", r"petra-graph doctor\b"
_PAGE = r"^file (?!.*plan).*\.html$"
"""A report of runs; the page of a plan has nothing that was measured."""
_PROFILE = r"petra-graph (profile|plan .*profile)\b|profile\.json$|^file [bp]\.json"
_RULES = [
    (re.compile(where), re.compile(pattern, re.MULTILINE), replacement)
    for where, pattern, replacement in (
        (_ANY, rf"{_NUMBER} samples/s", "# samples/s"),
        (_ANY, rf'"({_MEASURED})": {_NUMBER}', r'"\1": #'),
        (_ANY, r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+\d\d:\d\d)?", "<time>"),
        (_ANY, r"events\.out\.tfevents\.[\w.-]+", "events.out.tfevents"),
        (_ANY, r'("name": "samples_per_second", "value": |samples_per_second,)[\d.]+', r"\1#"),
        (_AGES, r"  \d+ (s|min)(  +|$)", "  # s  "),
        (_DOCTOR, rf"{_NUMBER} GiB free", "# GiB free"),
        (_MANIFEST, r'"sha256": "\w+"|"bytes": \d+', "#"),  # of files with times
        (_MANIFEST, rf'("epoch_began": \[\s+){_NUMBER}', r"\1#"),
        (_PAGE, "<svg.*?</svg>", "<svg>"),
        (_PAGE, _NUMBER, "#"),
        (_PAGE, r"(?<=# )(µs|ms|s|min)\b|^(µs|ms|s)(?=</th>)", "s"),
        (_ANY, r'(?:^  File "<package>/[^\n]*\n(?:    [^\n]*\n)*)+', "  (frames of petra_graph)\n"),
        (_ANY, r"<package>/petra_graph/[\w/]+\.py:\d+", "(a line of petra_graph)"),
        (_PROFILE, r"^! warning: the profile's operations took .*\n", ""),  # on a machine that others use
        (_PROFILE, _NUMBER, "#"),
        (_PROFILE, "  +", "  "),
    )
]


@click.group()
def main() -> None:
    """Compare what command lines print and write at two commits."""


_root = click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=ROOT,
    help="The repository whose commits and WORKTREE are meant; default: this one.",
)
_only = click.option("--only", metavar="TEXT", default="", help="Only cases that have this in their names or lines.")
_at_once = click.option("--at-once", type=click.IntRange(min=1), default=2, show_default=True, help="Cases at a time.")


@main.command()
@click.argument("commit")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@_root
@_only
@_at_once
def record(commit: str, folder: Path, root: Path, only: str, at_once: int) -> None:
    """Keep in FOLDER what COMMIT prints and writes, to be compared later."""
    if folder.exists() and any(folder.iterdir()):
        raise Refused(f"{folder} is not empty: name a new folder")
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    cases = chosen(gathered(folder), only)
    found = outputs(commit, root, cases, folder, at_once)
    (folder / _RECORDED).write_text(json.dumps({"environment": environment(), "cases": cases, "outputs": found}))
    click.echo(f"{found['description']}\n{counted(cases)}")


@main.command()
@click.argument("old")
@click.argument("new")
@_root
@_only
@_at_once
def compare(old: str, new: str, root: Path, only: str, at_once: int) -> None:
    """Compare OLD and NEW: commits, WORKTREE (or "."), or folders that `record` wrote."""
    with tempfile.TemporaryDirectory(prefix="same-outputs-") as name:
        recorded = {side: json.loads(Path(side, _RECORDED).read_text()) for side in (old, new) if _is_recorded(side)}
        for side, there in recorded.items():
            if _versions(there["environment"]) != _versions(environment()):
                raise Refused(f"{side} was recorded with other versions of Python and packages: record it again")
        place = Path(next(iter(recorded), name)).resolve()
        cases = chosen(recorded[next(iter(recorded))]["cases"] if recorded else gathered(place), only)
        before, after = (
            recorded[side]["outputs"] if side in recorded else outputs(side, root, cases, place, at_once)
            for side in (old, new)
        )
    click.echo(f"OLD {old}: {before['description']}\nNEW {new}: {after['description']}\n{counted(cases)}")
    different = 0
    for case in cases:
        if case["name"] in before["cases"] and case["name"] in after["cases"]:
            found = list(differences(case, before, after))
        else:
            found = ["one side has nothing of it"]
        if found:
            different += 1
            click.echo("\n".join(["", f"== {case['name']}", *found]))
    click.echo(f"{len(cases) - different} of {len(cases)} cases equal")
    sys.exit(different > 0)


def _is_recorded(side: str) -> bool:
    return Path(side, _RECORDED).is_file()


def _versions(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: version for name, version in found.items() if name not in {"time", "platform"}}


def counted(cases: Sequence[Case]) -> str:
    """Count the command lines by verb."""
    verbs = Counter(next(iter(line["arguments"]), "(none)") for case in cases for line in case["lines"])
    by_verb = ", ".join(f"{verb} {count}" for verb, count in verbs.most_common())
    return f"{verbs.total()} command lines in {len(cases)} cases: {by_verb}"


def chosen(cases: Sequence[Case], only: str) -> list[Case]:
    """Return the cases that have a text in their names or lines."""
    found = [
        case
        for case in cases
        if only in case["name"] or any(only in shlex.join(line["arguments"]) for line in case["lines"])
    ]
    if not found:
        raise Refused(f"no case has {only!r} in its name or lines")
    return found


# --- the cases --------------------------------------------------------------------------------------------------------


def gathered(place: Path) -> list[Case]:
    """Return all cases, and copy what they read into the folder `place`."""
    for name in READ_BY_LINES:
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    listed = tomllib.loads(CASES.read_text())
    click.echo(f"gathering the command lines of {', '.join(listed['tests'])}", err=True)
    return [*written(listed), *called_by_tests(listed["tests"], place)]


def written(listed: Mapping[str, Any]) -> Iterator[Case]:
    """Yield the cases of same_outputs.toml; each has the specifications in its folder."""
    specs = {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "specs").rglob("*.toml"))}
    for case in listed["cases"]:
        files = {**specs, **{name: listed["files"][name] for name in case.get("files", ())}}
        lines = [{"files": {}, "path": [], "arguments": shlex.split(line)} for line in case["lines"]]
        lines[0]["files"] = files
        yield {"name": case["name"], "lines": lines}


def called_by_tests(tests: Sequence[str], place: Path) -> Iterator[Case]:
    """Yield a case for each of these tests, but for those that call what another one does."""
    found = place / "lines.jsonl"
    command = [sys.executable, "-m", "pytest", "-p", "tools.lines_of_tests", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        [*command, "-m", "not processes"],
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "LINES_OF_TESTS": str(found), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode == 1:  # some failed, for example on a busy machine: their lines can be compared still
        click.echo(done.stdout[-2000:], err=True)
    elif done.returncode:
        raise Refused(
            f"the tests whose lines are compared cannot be called:\n{done.stdout[-2000:]}{done.stderr[-1000:]}"
        )
    seen = set()
    for case in map(json.loads, found.read_text().splitlines()):
        lines = json.dumps(case["lines"])
        if lines not in seen:
            seen.add(lines)
            yield case


# --- a side -----------------------------------------------------------------------------------------------------------


def outputs(asked: str, root: Path, cases: Sequence[Case], place: Path, at_once: int) -> Outputs:
    """Carry out the cases at a commit."""
    with tempfile.TemporaryDirectory(prefix="same-outputs-") as name:
        side = installed(asked, Path(name, "side").resolve(), root)
        check_installation(side)
        found = {}
        for done in _carried_out(side, cases, place, Path(name), at_once):
            found[done.pop("name")] = done
            if len(found) % 50 == 0:
                click.echo(f"{asked}: {len(found)} of {len(cases)} cases", err=True)
        places = {str(side.folder): "<package>", str(place): "<shared>", sys.prefix: "<environment>"}
        return {"description": side.description, "places": places, "cases": found}


def _carried_out(
    side: Side, cases: Sequence[Case], place: Path, folder: Path, at_once: int
) -> Iterator[dict[str, Any]]:
    (folder / "cases.json").write_text(json.dumps(cases))
    given = variables(side)
    given["PYTHONPATH"] = os.pathsep.join([given["PYTHONPATH"], str(place)])  # plugins of mistaken.py are in tests/
    given.pop("COLUMNS", None)
    command = [sys.executable, str(COMMAND_LINES), "cases.json", str(side.folder), str(place), str(at_once)]
    with subprocess.Popen(command, cwd=folder, env=given, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            result = Path(folder, line.strip())
            yield json.loads(result.read_text())
            result.unlink()
    if process.returncode:
        raise Refused(f"{side.asked}: {COMMAND_LINES.name} ended with exit code {process.returncode}")


# --- the comparison ---------------------------------------------------------------------------------------------------


def differences(case: Case, before: Outputs, after: Outputs) -> Iterator[str]:
    """Yield the differences of a case, in the form of `diff`."""
    old, new = said(case, before), said(case, after)
    for name in {**old, **new}:
        yield from _differences(name, old.get(name, "(nothing)\n"), new.get(name, "(nothing)\n"))


def _differences(name: str, one: str, other: str) -> Iterator[str]:
    if one != other:
        lines = list(difflib.unified_diff(one.splitlines(), other.splitlines(), "OLD", "NEW", n=1, lineterm=""))
        yield f"-- {name}"
        yield from lines[2 : 2 + _MOST_LINES] or ["ends of lines differ"]
        if len(lines) > 2 + _MOST_LINES:
            yield f"... and {len(lines) - 2 - _MOST_LINES} lines more"


def said(case: Case, side: Outputs) -> dict[str, str]:
    """Return what each line of a case printed, and each file, without what no two runs have in common."""
    done = side["cases"][case["name"]]
    runs = list(dict.fromkeys(match[0] for match in _RUN.finditer(json.dumps(done))))
    places = {
        done["folder"]: "<here>",
        **side["places"],
        **{name: f"<run {n}>" for n, name in enumerate(runs, start=1)},
    }
    found = {}
    for number, (asked, line) in enumerate(zip(case["lines"], done["lines"], strict=True), start=1):
        name = f"{number}. {shlex.join(['petra-graph', *asked['arguments']])}"
        errors = "".join(f"! {text}" for text in line["err.txt"].splitlines(keepends=True))
        found[name] = common(name, f"exit code {line['code']}\n{line['out.txt']}{errors}", places)
    for name, text in done["files"].items():
        named = common("", f"file {name}", places)
        found[named] = common(named, text, places)
    return found


def common(name: str, text: str, places: Mapping[str, str]) -> str:
    """Return a text with words in the place of what no two runs have in common."""
    for place, word in places.items():
        text = text.replace(place, word)
    for where, pattern, replacement in _RULES:
        if where.search(name):
            text = pattern.sub(replacement, text)
    if re.search(_AGES, name) and "--json" not in name:  # runs that began within a second are in any order
        text = "".join(sorted(text.splitlines(keepends=True)))
    return text


if __name__ == "__main__":
    main()
