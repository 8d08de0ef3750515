"""Damaged files of a run, and the verbs that read runs: each may refuse them, and none may end in a traceback or a failed run.

A case is one file of a run with two checkpoints, damaged in its bytes, or bent in its values. Files for `init.weights` are cases, too.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

MARK = b"\n--- file ---\n"
SPEC = """\
name = "small"
[[graph.node]]
name = "stem"
block = "linear-stem"
options = { features = 6 }
[[graph.node]]
name = "rev"
block = "rev-mlp"
options = { hidden = 6 }
[[graph.node]]
name = "head"
block = "pool-linear"
options = { outputs = 10 }
[method]
schedule = "1f1b"
accumulation = 2
[data]
name = "digits"
batch = 128
[run]
epochs = 1
micro_batches = 6
evaluation_batches = 1
log_every = 2
[checkpoint]
every = "2 updates"
[[logger]]
name = "jsonl"
"""
OF_THE_SPEC = {"resolved.toml", "spec.toml"}
"""Files that may ask for a training that fails."""
Bend = Callable[[random.Random, Any], Any]
Damage = Callable[[random.Random, bytes], bytes]


def made_run(folder: Path) -> Path:
    """Train a small run in a folder, with checkpoints in the middle and at the end, and files of weights beside it."""
    import torch

    from petra_graph.plugins.callback import Listener
    from petra_graph.training.run import run

    (folder / "small.toml").write_text(SPEC)
    run(str(folder / "small.toml"), [f"run.directory={folder / 'made'}"], Listener())
    (made,) = (folder / "made").iterdir()
    whole = made.rename(folder / "whole")
    state = {"weight": torch.ones(6, 64), "bias": torch.ones(6)}
    torch.save(state, whole / "state.pt")
    torch.save({"model": state, "epoch": 3}, whole / "state-old.pt", _use_new_zipfile_serialization=False)
    return whole


def cases(dice: random.Random, whole: Path, damaged: Damage, bent: Bend) -> Iterator[bytes]:
    """Yield one damaged file after another, each with its name in the run before it."""
    names = sorted(str(path.relative_to(whole)) for path in whole.rglob("*") if path.is_file())
    while True:
        name = dice.choice(names)
        content = (whole / name).read_bytes()
        match dice.randrange(4):
            case 0:
                yield name.encode() + MARK + damaged(dice, content)
            case 1:
                nested = dice.choice(
                    (b"[" * 100_000, b'{"a":' * 100_000, b"a = " + b"[" * 100_000, b"", b"\xff\xfe", b"null", b"[]")
                )
                yield name.encode() + MARK + nested
            case _ if name.endswith((".json", ".safetensors", ".toml", ".jsonl")):
                with contextlib.suppress(TypeError, ValueError, AttributeError, IndexError):
                    yield name.encode() + MARK + _bent_content(dice, name, content, bent)
            case _:
                yield name.encode() + MARK + damaged(dice, content)


def _bent_content(dice: random.Random, name: str, content: bytes, bent: Bend) -> bytes:
    if name.endswith(".json"):
        values = json.loads(content)
        return json.dumps(bent(dice, values)).encode()
    if name.endswith(".jsonl"):
        lines = content.splitlines(keepends=True)
        at = dice.randrange(len(lines))
        lines[at] = json.dumps(bent(dice, json.loads(lines[at]))).encode() + b"\n"
        return b"".join(lines)
    if name.endswith(".toml"):
        import tomllib

        import tomli_w

        return tomli_w.dumps(bent(dice, tomllib.loads(content.decode()))).encode("utf-8", "replace")
    return _bent_tensors(dice, content, bent)


def _bent_tensors(dice: random.Random, content: bytes, bent: Bend) -> bytes:
    """Change the facts of a file of tensors, or a tensor's shape, type or name."""
    import torch
    from safetensors.torch import load, save

    length = int.from_bytes(content[:8], "little")
    facts = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    tensors = load(content)
    if facts and dice.random() < 0.6:
        found = bent(dice, {key: json.loads(value) for key, value in facts.items()})
        return save(tensors, {str(key): json.dumps(value) for key, value in found.items()})
    name = dice.choice(list(tensors))
    match dice.randrange(4):
        case 0:
            tensors[name] = torch.ones(dice.choice(((), (0,), (3,), (2, 5))))
        case 1:
            tensors[name] = tensors[name].to(torch.int64)
        case 2:
            del tensors[name]
        case _:
            tensors[name + "x"] = tensors.pop(name)
    return save(tensors, facts or None)


def verbs_of(name: str, run: Path) -> Sequence[Sequence[str]]:
    """Return the command lines that read a file of a run."""
    at = ["--set", f"run.directory={run.parent}"]
    stages = ["--set", "partition.stages=2", "--set", 'partition.devices=["cpu"]']
    begins = ["run", str(run.parent / "small.toml"), "--fast-dev-run", *at, "--set", "init.strict=false"]
    reads = [["report", str(run)], ["runs", str(run.parent)]]
    if name.startswith("checkpoints/"):
        return [
            ["run", "--resume", str(run), *stages * (len(name) % 2)],
            ["evaluate", str(run), "--weights", "latest"],
            *reads,
        ]
    if name.endswith((".pt", ".safetensors")):
        return [[*begins, "--set", f"init.weights={run / name}"], ["evaluate", str(run), "--weights", name]]
    exports = ["export", str(run), "--format", "safetensors", "--output", str(run / "out")]
    return [["run", "--resume", str(run)], ["evaluate", str(run)], exports, *reads]


def read(whole: Path, folder: Path, case: bytes) -> None:
    """Let the verbs read a run with a damaged file.

    Raises:
        AssertionError: a verb says that a run has failed, though no file that describes it is damaged; a checkpoint whose digests
            are right, and which is of other stages, may be refused when the stages are there.
        BaseException: a verb ends with anything but an exit code.
    """
    from petra_graph.cli.main import main

    name, _, content = case.partition(MARK)
    folder.mkdir(exist_ok=True)
    (folder / "small.toml").write_text(SPEC)
    for verb in range(len(verbs_of(name.decode(), folder / "run"))):
        run = folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(whole, run)
        (run / name.decode()).write_bytes(content)
        words = verbs_of(name.decode(), run)[verb]
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            code = main(words)
        named = name.decode() in OF_THE_SPEC or "help: resume" in said.getvalue()
        assert code != 1 or named, f"{' '.join(words)}: {said.getvalue()}"
        assert "Traceback" not in said.getvalue(), said.getvalue()
