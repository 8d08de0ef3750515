"""Damaged input of every kind, in a process with limits: a refusal is right, a crash, a hang or much memory is not.

    python tools/fuzz.py --seconds 60
    python tools/fuzz.py --kind runs --seconds 1200 --seed 7

Each input is a right one, damaged in its bytes or in its values: a spec, a plan, a profile, or a file of a run, for the verbs that read
it. petra-graph may refuse it by an exit code of its own (2, or 1 where a training fails); a traceback, more than 30 seconds or more
than 1 GiB for one input is a finding, and the input is kept in --keep. The exit code is 1 where anything was found.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import multiprocessing
import random
import resource
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
import tomli_w

from petra_graph.cli.main import main as petra_graph

ROOT = Path(__file__).parents[1]
HANG_SECONDS = 30.0
GROWTH_KIB = 2**20
KINDS = ("specs", "plans", "profiles", "runs")
VALUES = [None, 0, -1, True, "x", "", [], {}, [1], {"a": 1}, 1e308, 2**63, 10**30, "é\u0000", "a" * 5000]
WHOLE = (b"[" * 100_000, b'{"a":' * 100_000, b"a = " + b"[" * 100_000, b"", b"\xff\xfe", b"null", b"[]")
SMALL = (
    *("--set", "data.batch=128", "--set", "run.epochs=1", "--set", "run.micro_batches=4"),
    *("--set", "run.evaluation_batches=1", "--set", 'checkpoint.every="1 update"'),
)


def damaged(dice: random.Random, whole: bytes) -> bytes:
    """Return a copy with bytes changed, taken out or repeated, or something else."""
    if dice.random() < 0.1:
        return dice.choice(WHOLE)
    content = bytearray(whole)
    for _ in range(dice.choice((1, 1, 2, 4, 16))):
        at = dice.randrange(max(1, len(content)))
        match dice.randrange(3):
            case 0 if content:
                content[at] = dice.randrange(256)
            case 1:
                del content[at : at + dice.randrange(1, 9)]
            case _:
                start = dice.randrange(len(whole))
                content[at:at] = whole[start : start + dice.randrange(1, 40)]
    return bytes(content)


def bent(dice: random.Random, document: Any) -> Any:
    """Return a copy with values changed, missing or in other places."""

    def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        if path:
            yield path
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, item in items:
            yield from paths(item, (*path, key))

    found, every = copy.deepcopy(document), list(paths(document))
    for _ in range(dice.choice((1, 1, 2, 5)) if every else 0):
        *above, last = dice.choice(every)
        with contextlib.suppress(LookupError, TypeError):
            inside = found
            for key in above:
                inside = inside[key]
            if dice.random() < 0.3:
                del inside[last]
            else:
                inside[last] = copy.deepcopy(dice.choice(VALUES))
    return found


def spoilt(dice: random.Random, name: str, content: bytes) -> bytes:
    """Return a file's content damaged, by its values where it has some that can be read."""
    if dice.random() < 0.6:
        with contextlib.suppress(TypeError, ValueError, AttributeError, IndexError):
            if name.endswith(".toml"):
                return tomli_w.dumps(bent(dice, tomllib.loads(content.decode()))).encode("utf-8", "replace")
            if name.endswith(".json"):
                return json.dumps(bent(dice, json.loads(content))).encode()
            if name.endswith(".jsonl"):
                lines = content.splitlines()
                at = dice.randrange(len(lines))
                lines[at] = json.dumps(bent(dice, json.loads(lines[at]))).encode()
                return b"\n".join(lines) + b"\n"
            if name.endswith(".safetensors"):
                length = int.from_bytes(content[:8], "little")
                header = json.dumps(bent(dice, json.loads(content[8 : 8 + length]))).encode()
                return len(header).to_bytes(8, "little") + header + content[8 + length :]
    return damaged(dice, content)


def verbs(kind: str, folder: Path, name: str) -> Sequence[Sequence[str]]:
    """Return the command lines that read a file of a kind in a folder."""
    file, spec, run = str(folder / name), str(ROOT / "specs" / "quickstart.toml"), str(folder)
    match kind:
        case "specs":
            return [["validate", file]]
        case "plans":
            return [["run", spec, "--plan", file, "--dry-run"]]
        case "profiles":
            return [["plan", spec, "--set", f"partition.profile={file}"]]
    resumed = ["run", "--resume", run, *(("--set", "partition.stages=2") if len(name) % 2 else ())]
    exported = ["export", run, "--format", "torch-export", "--output", f"{run}-exported"]
    return [resumed, ["evaluate", run], exported, ["report", run], ["runs", str(folder.parent)]]


def right_files(kind: str, home: Path) -> dict[str, Path]:
    """Make the right files of a kind, and return them by their names."""
    spec = str(ROOT / "specs" / "quickstart.toml")
    with contextlib.redirect_stdout(said := io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        match kind:
            case "specs":
                return {path.name: path for path in sorted((ROOT / "specs").glob("*.toml"))}
            case "plans":
                assert petra_graph(["plan", spec, "--json"]) == 0
                (home / "plan.json").write_text(said.getvalue())
            case "profiles":
                assert petra_graph(["profile", spec, "--output", str(home / "profile.json")]) == 0
            case "runs":
                assert petra_graph(["run", spec, *SMALL, "--set", f"run.directory={home}"]) == 0
                home = next(home.iterdir())
    return {str(path.relative_to(home)): path for path in sorted(home.rglob("*")) if path.is_file()}


def tried(kind: str, files: dict[str, Path], seed: int, folder: Path) -> str:
    """Let the verbs read one damaged file; return what should not be, or "". The file is left in the folder."""
    dice = random.Random(f"{kind} {seed}")
    name = dice.choice(list(files))
    content = spoilt(dice, name, files[name].read_bytes())
    for at in range(len(verbs(kind, folder, name))):
        shutil.rmtree(folder, ignore_errors=True)
        for other, path in files.items() if kind == "runs" else ():
            (folder / other).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / other)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        words, said = verbs(kind, folder, name)[at], io.StringIO()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            code = petra_graph(words)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        if code not in {0, 1, 2} or "Traceback" in said.getvalue() or grown > GROWTH_KIB:
            return f"{name}: exit code {code}, {grown} KiB of {' '.join(words)}: {said.getvalue()[-500:]}"
    return ""


def be_child(pipe: Connection, kind: str, files: dict[str, Path], seed: int, folder: Path) -> None:
    """Read damaged inputs until killed; say of each what was found."""
    while True:
        try:
            found = tried(kind, files, seed, folder)
        except BaseException as error:  # noqa: BLE001  whatever it is, it is a finding
            found = repr(error)
        pipe.send(found)
        seed += 1


@click.command()
@click.option("--seconds", default=60.0, show_default=True, help="For each kind.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Default: all.")
@click.option("--seed", default=0, show_default=True, help="Of the first input.")
@click.option("--keep", type=click.Path(path_type=Path), default=Path("findings"), show_default=True)
def main(seconds: float, kinds: Sequence[str], seed: int, keep: Path) -> None:
    forks, failed = multiprocessing.get_context("fork"), False
    for kind in kinds or KINDS:
        with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as place:
            files, number, end = right_files(kind, Path(home)), seed, time.monotonic() + seconds
            folder, child = Path(place, "case"), None
            while time.monotonic() < end:
                if child is None:
                    ours, theirs = forks.Pipe()
                    child = forks.Process(target=be_child, args=(theirs, kind, files, number, folder), daemon=True)
                    child.start()
                patience = HANG_SECONDS * (1 if kind != "runs" else 5)
                found = ours.recv() if ours.poll(patience) else f"more than {patience:g} s"
                if found:
                    failed = True
                    keep.mkdir(parents=True, exist_ok=True)
                    shutil.copytree(folder, keep / f"{kind}-{number}", dirs_exist_ok=True)
                    click.echo(f"{kind}, seed {number}: {found}")
                    child.kill()
                    child = None
                number += 1
            if child is not None:
                child.kill()
                child.join()
        click.echo(f"{kind}: {number - seed} inputs")
    sys.exit(failed)


if __name__ == "__main__":
    main()
