"""Damaged input of every kind, in subprocesses with limits: a refusal is right, a crash, a hang or much memory is not.

    python tools/fuzz.py --seconds 60
    python tools/fuzz.py --kind specs --seconds 1200 --seed 7

A child process reads many inputs, each a damaged copy of a right one, and writes its number before each. It may refuse an
input by an error of petra-graph's own; anything else that it raises, more than 10 seconds or more than 1 GiB for one
input is a finding, and the input is kept in --keep. The exit code is 1 where anything was found.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import click

ROOT = Path(__file__).parents[1]
_HANG_SECONDS = 10.0
_GROWTH_KIB = 2**20
_VALUES = [None, 0, -1, True, "x", "", [], {}, [1], {"a": 1}, 1e308, 2**63, 10**30, "é\u0000", "a" * 5000]

Read = Callable[[Path], object]
Made = Iterator[bytes]


def damaged(dice: random.Random, whole: bytes) -> bytes:
    """Return a copy with bytes changed, taken out or repeated."""
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


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _paths(item, (*path, key))


def bent(dice: random.Random, document: Any) -> Any:
    """Return a copy with values changed, missing or in other places."""
    found = copy.deepcopy(document)
    every = list(_paths(document))
    for _ in range(dice.choice((1, 1, 2, 5))):
        *above, last = dice.choice(every)
        with contextlib.suppress(LookupError, TypeError):
            inside = found
            for key in above:
                inside = inside[key]
            if dice.random() < 0.3:
                del inside[last]
            else:
                inside[last] = copy.deepcopy(dice.choice(_VALUES))
    return found


# --- kinds: the damaged inputs, and how one is read -------------------------------------------------------------------


def specs(dice: random.Random) -> tuple[Made, Read]:
    import tomllib

    import tomli_w

    from petra_graph.planning.check.check_spec import check_spec

    texts = [path.read_bytes() for path in sorted((ROOT / "specs").glob("*.toml"))]
    values = [tomllib.loads(text.decode()) for text in texts]

    def made() -> Made:
        while True:
            if dice.random() < 0.5:
                yield damaged(dice, dice.choice(texts))
                continue
            with contextlib.suppress(TypeError, ValueError, AttributeError):
                yield tomli_w.dumps(bent(dice, dice.choice(values))).encode("utf-8", "replace")

    return made(), lambda path: check_spec(str(path))


def plans(dice: random.Random) -> tuple[Made, Read]:
    from petra_graph.planning.plan_spec import plan
    from petra_graph.program.plan_document import read_document
    from petra_graph.report.plan_text import plan_text

    whole = plan(str(ROOT / "specs" / "quickstart.toml")).document(with_timeline=True)
    text = json.dumps(whole).encode()

    def made() -> Made:
        while True:
            yield damaged(dice, text) if dice.random() < 0.3 else json.dumps(bent(dice, whole)).encode()

    def read(path: Path) -> object:
        document = read_document(path.read_text(encoding="utf-8", errors="replace"), str(path))
        return plan_text(document, width=100, verbose=True)

    return made(), read


def profiles(dice: random.Random) -> tuple[Made, Read]:
    from petra_graph.planning.plan_spec import Planner
    from petra_graph.profiling import profile
    from petra_graph.record.profile_files import write_profile

    spec = str(ROOT / "specs" / "quickstart.toml")
    with tempfile.TemporaryDirectory() as name:
        write_profile(Path(name) / "taken.json", profile(spec, [], 1))
        text = (Path(name) / "taken.json").read_bytes()
    whole = json.loads(text)

    def made() -> Made:
        while True:
            yield damaged(dice, text) if dice.random() < 0.3 else json.dumps(bent(dice, whole)).encode()

    planner = Planner(spec)

    def read(path: Path) -> object:
        partition = attrs.evolve(planner.spec.partition, profile=str(path))
        return planner.plan(attrs.evolve(planner.spec, partition=partition))

    return made(), read


def runs(dice: random.Random) -> tuple[Made, Read]:
    from tools.fuzz_runs import cases, made_run, read

    home = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    whole = made_run(home)
    return cases(dice, whole, damaged, bent), lambda path: read(whole, path.parent / "case", path.read_bytes())


KINDS: Mapping[str, Callable[[random.Random], tuple[Made, Read]]] = {
    "specs": specs,
    "plans": plans,
    "profiles": profiles,
    "runs": runs,
}


def be_child(kind: str, seed: int, folder: Path) -> None:
    """Read damaged inputs until killed."""
    import warnings

    from petra_graph.errors import PetraGraphError

    warnings.simplefilter("ignore")
    made, read = KINDS[kind](random.Random(f"{kind} {seed}"))
    path, numbers = folder / "input.toml", (folder / "number").open("w")
    for number, content in enumerate(made):
        path.write_bytes(content)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        numbers.seek(0)
        numbers.write(str(number))
        numbers.flush()
        try:
            read(path)
        except PetraGraphError:
            pass
        except BaseException:  # noqa: BLE001  whatever it is, it is a finding
            (folder / "finding").write_text(traceback.format_exc())
            os._exit(3)
        if number > 50 and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before > _GROWTH_KIB:
            (folder / "finding").write_text("more than 1 GiB")
            os._exit(3)


def tried(kind: str, seed: int, seconds: float, keep: Path) -> tuple[int, list[str]]:
    """Let children read damaged inputs for some time; return how many, and what was found."""
    end, total, findings = time.monotonic() + seconds, 0, []
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            command = [sys.executable, __file__, "--child", kind, "--seed", str(seed), "--folder", name]
            child = subprocess.Popen(
                command, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=folder, stderr=subprocess.DEVNULL
            )
            number, since, fault = -1, time.monotonic() + 30, ""
            while child.poll() is None and time.monotonic() < end and not fault:
                time.sleep(0.05)
                with contextlib.suppress(OSError, ValueError):
                    now = int((folder / "number").read_text())
                    if now != number:
                        number, since = now, time.monotonic()
                fault = "" if time.monotonic() - since < _HANG_SECONDS else f"more than {_HANG_SECONDS:g} s"
            if child.poll() is not None:
                told = folder / "finding"
                fault = told.read_text() if told.exists() else f"the process ended with {child.returncode}"
            child.kill()
            child.wait()
            total += number + 1
            if fault:
                kept = keep / f"{kind}-{seed}-{number}"
                keep.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(OSError):
                    kept.write_bytes((folder / "input.toml").read_bytes())
                findings.append(f"{kind}, seed {seed}, input {number} ({kept}): {fault.strip().splitlines()[-1]}")
        seed += 1
    return total, findings


@click.command()
@click.option("--seconds", default=60.0, show_default=True, help="For each kind.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), help="Default: all.")
@click.option("--seed", default=0, show_default=True)
@click.option("--keep", type=click.Path(path_type=Path), default=Path("findings"), show_default=True)
@click.option("--child", type=click.Choice(list(KINDS)), hidden=True)
@click.option("--folder", type=click.Path(path_type=Path), hidden=True)
def main(seconds: float, kinds: tuple[str, ...], seed: int, keep: Path, child: str | None, folder: Path | None) -> None:
    if child is not None and folder is not None:
        be_child(child, seed, folder)
        return
    rows, found = [], 0
    for kind in kinds or KINDS:
        total, findings = tried(kind, seed, seconds, keep.resolve())
        found += len(findings)
        rows.append(f"| {kind} | {total:,} | {len(findings)} |")
        for finding in findings:
            click.echo(finding)
    click.echo("\n".join(["| kind | inputs | findings |", "|---|---|---|", *rows]))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
