"""What happens between `petra-graph run` and the first forward: calls of functions, modules that are imported, seconds of the processor.

    python tools/bench/first_forward.py                          this checkout
    python tools/bench/first_forward.py --against ../other       with another one, in turns

Each run is a process of its own that ends at its first forward. Calls are counted in runs that are not timed. They are the same on a loaded
machine; seconds are those of the processor in user mode, the least of several.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from network import save

HERE = Path(__file__).resolve().parents[2]
CHILD = """
import importlib.machinery, importlib.util, json, os, sys
counting, calls, own = sys.argv.pop(1) == "count", [0], [0]

def stop(*_, **__):
    sys.setprofile(None)
    modules = [name for name in sys.modules if name.partition(".")[0] == "petra_graph"]
    result = dict(seconds=os.times().user, modules=len(sys.modules), own_modules=len(modules))
    if counting:
        result |= dict(calls=calls[0], own_calls=own[0])
    os.write(3, json.dumps(result).encode())
    os._exit(0)

class AtFirstForward:
    def find_spec(self, name, path=None, target=None):
        if name != "petra_graph.executor.stage_executor":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module
        def patched(module):
            execute(module)
            module.StageExecutor.forward = stop
        spec.loader.exec_module = patched
        return spec

def count(frame, event, _):
    if event == "call":
        calls[0] += 1
        own[0] += "/petra_graph/" in frame.f_code.co_filename

sys.meta_path.insert(0, AtFirstForward())
from petra_graph.cli.main import main
if counting:
    import threading
    threading.setprofile(count)
    sys.setprofile(count)
sys.exit(main(sys.argv[1:]))
"""


def start(checkout: Path, spec: str, *, counting: bool) -> dict[str, Any]:
    """Start a run of a checkout, and return what it took until its first forward."""
    python = checkout / ".venv/bin/python"
    read, write = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        command = [str(python) if python.exists() else sys.executable, "-c", CHILD, "count" if counting else "time"]
        command += ["run", spec, "--set", f"run.directory={folder}"]
        environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        child = subprocess.Popen(
            ["sh", "-c", 'exec "$@" 3>&"$FD"', "sh", *command],
            cwd=checkout,
            env={**environment, "FD": str(write)},
            pass_fds=[write],
            stderr=subprocess.PIPE,
        )
        os.close(write)
        _, errors = child.communicate()
    with os.fdopen(read) as pipe:
        text = pipe.read()
    if not text:
        raise click.ClickException(f"{checkout} did not come to a first forward: {errors.decode()}")
    result: dict[str, Any] = json.loads(text)
    return result


@click.command()
@click.option("--spec", default="specs/quickstart.toml", show_default=True)
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Another checkout, with a .venv of its own.",
)
@click.option("--rounds", default=7, show_default=True)
@click.option("--write/--no-write", default=False, help="Keep the result in tools/bench/results.")
def main(spec: str, against: Path | None, rounds: int, write: bool) -> None:
    sides = {"here": HERE} if against is None else {"other": against.resolve(), "here": HERE}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, checkout in sides.items():
            seconds[side].append(start(checkout, spec, counting=False)["seconds"])
    found = {}
    for side, checkout in sides.items():
        counted = start(checkout, spec, counting=True)
        found[side] = {**counted, "seconds": min(seconds[side])}
    result = {"spec": spec, "rounds": rounds, **found}
    click.echo(json.dumps(result, indent=2))
    if write:
        click.echo(f"written: {save('first_forward', result)}", err=True)


if __name__ == "__main__":
    main()
