"""Carry out command lines of the petra-graph that is importable, each in a process of its own, and keep what they say and write.

    python tools/command_lines.py CASES.json FOLDER SHARED AT_ONCE

A case is a list of lines that share a folder: files to write first, folders on Python's path, and arguments. All processes are
forks of this one, which has imported torch and every module of petra-graph and has called nothing of them. A line of JSON
says what came of each case. Modules of petra-graph must come from FOLDER.
"""

from __future__ import annotations

import base64
import json
import os
import pkgutil
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

PRELOADED = ("networkx", "rich.progress", "safetensors.torch", "sklearn.datasets", "torch._dynamo", "torchvision")
"""What takes long to import, and is imported once for all processes."""
HERE, SHARED = "<here>", "<shared>"
BINARY = "no text"
_FORKS = get_context("fork")
_LIMIT_SECONDS = 300.0
_SAID = ("out.txt", "err.txt")


def main(cases: str, folder: str, shared: str, at_once: str) -> None:
    torch.set_num_threads(1)
    every, share = json.loads(Path(cases).read_text()), int(at_once)
    import petra_graph

    found = [name for _, name, _ in pkgutil.walk_packages(petra_graph.__path__, "petra_graph.")]
    for name in (*PRELOADED, *found):
        if not name.endswith("__main__") and ".parts" not in name:
            with suppress(ImportError):
                import_module(name)
    foreign = [name for name in sys.modules if name.startswith("petra_graph") and not _is_from(folder, name)]
    if foreign:
        sys.exit(f"these modules are not from {folder}: {', '.join(foreign)}")
    shares = [_FORKS.Process(target=_carry_out, args=(every[at::share], shared)) for at in range(share)]
    for process in shares:
        process.start()
    for process in shares:
        process.join()


def _is_from(folder: str, name: str) -> bool:
    return str(getattr(sys.modules[name], "__file__", None) or folder).startswith(folder)


def _carry_out(cases: Sequence[dict[str, Any]], shared: str) -> None:
    """Do cases one after another; each result is written at once, as others write theirs too."""
    for case in cases:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="case-") as name:
            done = {"name": case["name"], **_done(case["lines"], Path(name).resolve(), shared)}
        text = json.dumps({**done, "seconds": round(time.monotonic() - began, 2)})
        with tempfile.NamedTemporaryFile("w", dir=".", suffix=".result", delete=False) as file:
            file.write(text)
        os.write(1, f"{file.name}\n".encode())


def _done(lines: Sequence[dict[str, Any]], outside: Path, shared: str) -> dict[str, Any]:
    """Carry out the lines of a case; return what each said, and what all of them wrote."""
    folder, said = outside / "here", []
    folder.mkdir()
    given = {}
    for number, line in enumerate(lines):
        for file, text in line["files"].items():
            given[file] = _content(text, folder, shared)
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(given[file])
        outputs = [outside / f"{number}.{name}" for name in _SAID]
        words = [_local(word, folder, shared) for word in line["arguments"]]
        paths = [_local(path, folder, shared) for path in line["path"]]
        process = _FORKS.Process(target=_line, args=(words, folder, paths, outputs))
        process.start()
        process.join(_LIMIT_SECONDS)
        if process.is_alive():
            assert process.pid is not None
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
        said.append({"code": process.exitcode, **dict(zip(_SAID, map(_read, outputs), strict=True))})
    written = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        name = str(path.relative_to(folder))
        if name not in given or path.read_bytes() != given[name]:
            written[name] = _read(path)
    return {"folder": str(folder), "lines": said, "files": written}


def _local(text: str, folder: Path, shared: str) -> str:
    return text.replace(HERE, str(folder)).replace(SHARED, shared)


def _content(text: str, folder: Path, shared: str) -> bytes:
    if text.startswith("base64:"):
        return base64.b64decode(text.removeprefix("base64:"))
    return _local(text, folder, shared).encode()


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        return BINARY


def _line(words: Sequence[str], folder: Path, paths: Sequence[str], outputs: Sequence[Path]) -> None:
    """Be one process of the command line."""
    os.setsid()
    os.chdir(folder)
    sys.path[:0] = paths
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for descriptor, path in enumerate(outputs, start=1):
        with path.open("w") as file:
            os.dup2(file.fileno(), descriptor)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", buffering=1, closefd=False)
    sys.argv = ["petra-graph", *words]
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  plugins may draw from it
    from petra_graph.cli.main import main as petra_graph

    try:
        code = petra_graph()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # noqa: BLE001  the process ends here, whatever it was
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
