"""Carry out a list of trainings with the petra-graph that is importable, each in processes of its own.

    python tools/trainings.py JOBS.json FOLDER AT_ONCE

JOBS.json is a list of jobs: the folder to work in, and steps, each with the arguments of the command line, the number of
processes, which get torchrun's variables where there is more than one, and the step of the training at which SIGKILL ends
them, or 0. A file prepare.py in the folder is run first. All processes are forks of this one, which has imported torch and
petra-graph and has called nothing of them: no case sees another's random state, and none waits for imports. A line of JSON
says how each job ended. So many jobs go on AT_ONCE. Modules of petra-graph must come from FOLDER, or the job has failed.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

PRELOADED = ("networkx", "safetensors.torch", "sympy", "torch.utils.flop_counter", "torch.utils.tensorboard")
"""What takes long to import, and is imported once for all processes; any of them may be missing."""
_FORKS = get_context("fork")
_LIMIT_SECONDS = 180.0
WRONG_MODULES, TOO_LATE = 98, 97
"""Exit codes of a job that imported another petra-graph's modules, and of one that ended before it was killed."""


def main(jobs: str, folder: str, at_once: str) -> None:
    torch.set_num_threads(1)
    for module in PRELOADED:
        with suppress(ImportError):
            import_module(module)
    every, share = json.loads(Path(jobs).read_text()), int(at_once)
    _import_what_a_run_imports(every[0])
    shares = [_FORKS.Process(target=_carry_out, args=(every[at::share], folder)) for at in range(share)]
    for process in shares:
        process.start()
    for process in shares:
        process.join()


def _import_what_a_run_imports(job: dict[str, Any]) -> None:
    """Import petra-graph's modules once for all processes: those that a dry run, which is a fork, turns out to need."""
    names = Path(job["folder"], "modules.json")
    scout = _FORKS.Process(target=_scout, args=(job, names))
    scout.start()
    scout.join()
    for name in json.loads(names.read_text()) if names.exists() else ():
        with suppress(ImportError):
            import_module(name)


def _scout(job: dict[str, Any], names: Path) -> None:
    os.chdir(job["folder"])
    _redirect_output("scout")
    from petra_graph.cli.main import main as petra_graph

    petra_graph([*job["steps"][0]["arguments"], "--dry-run"])
    names.write_text(json.dumps([name for name in sys.modules if name.partition(".")[0] == "petra_graph"]))
    os._exit(0)


def _redirect_output(name: str) -> None:
    for descriptor, kind in ((1, "output"), (2, "errors")):
        with Path(f"{kind}-{name}.txt").open("w") as file:
            os.dup2(file.fileno(), descriptor)


def _carry_out(jobs: Sequence[dict[str, Any]], folder: str) -> None:
    """Do jobs one after another; each line is written at once, as others write lines too."""
    for job in jobs:
        began = time.monotonic()
        place, code = Path(job["folder"]), 0
        if (place / "prepare.py").exists():
            preparing = _FORKS.Process(target=_prepare, args=(place,))
            preparing.start()
            preparing.join()
        for step in job["steps"]:
            code = code or _trained(place, step, folder)
        ended = {"folder": job["folder"], "code": code, "seconds": round(time.monotonic() - began, 2)}
        os.write(1, f"{json.dumps(ended)}\n".encode())


def _prepare(place: Path) -> None:
    os.chdir(place)
    sys.path.insert(0, "")
    runpy.run_path("prepare.py")


def _trained(place: Path, step: dict[str, Any], folder: str) -> int:
    """Return the first exit code that is not 0; processes that take too long are killed."""
    size, port = step["processes"], _free_port()
    ranks = [_FORKS.Process(target=_rank, args=(place, step, rank, port, folder)) for rank in range(size)]
    for process in ranks:
        process.start()
    end = time.monotonic() + _LIMIT_SECONDS
    if step["killed_at"]:
        while time.monotonic() < end and _reached(place) < step["killed_at"] and all(one.is_alive() for one in ranks):
            time.sleep(0.002)
        end = 0.0
    early = [process.exitcode for process in ranks if not process.is_alive()]
    for process in ranks:
        process.join(max(0.0, end - time.monotonic()))
        if process.is_alive():
            assert process.pid is not None
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.join()
    if step["killed_at"]:
        return (early[0] or TOO_LATE) if early else 0
    return next((process.exitcode for process in ranks if process.exitcode), 0)


def _reached(place: Path) -> int:
    """Return the latest step that a run has recorded."""
    for file in place.glob("runs/*/metrics.jsonl"):
        lines = file.read_text(encoding="utf-8").split("\n")[:-1]
        return int(json.loads(lines[-1])["step"] or 0) if lines else 0
    return 0


def _rank(place: Path, step: dict[str, Any], rank: int, port: int, folder: str) -> None:
    """Be one process of a job."""
    # Torch makes a fork's pool of threads at its first use, and two threads at once would abort.
    torch.set_num_threads(1)
    os.setsid()
    os.chdir(place)
    size = step["processes"]
    if size > 1:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    _redirect_output(str(rank))
    os._exit(_exit_code(step["arguments"], folder))


def _exit_code(arguments: list[str], folder: str) -> int:
    from petra_graph.cli.main import main as petra_graph

    try:
        code = petra_graph(arguments)
    except BaseException:  # noqa: BLE001  the process ends here, whatever it was
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    foreign = _modules_from_elsewhere(folder)
    if foreign:
        sys.stderr.write(f"these modules are not from {folder}: {', '.join(foreign)}\n")
    sys.stderr.flush()
    return WRONG_MODULES if foreign else code


def _modules_from_elsewhere(folder: str) -> list[str]:
    """Name the modules of petra-graph that were imported from another place."""
    return [
        f"{name} ({module.__file__})"
        for name, module in sorted(sys.modules.items())
        if name.startswith("petra_graph")
        and not str(getattr(module, "__file__", folder + os.sep)).startswith(folder + os.sep)
    ]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
