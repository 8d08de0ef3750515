"""Checkpoints as folders of a run's directory: whole, or not there; a reader checks every file's digest before it loads anything.

RUN/checkpoints/000000001500/            the cut before forward 1500 (`program.cut`); with a + behind it, the same cut taken again
stage-003.safetensors                what stage 3 holds (`executor.state`), and its messages in flight
stage-003.replica-1.safetensors      the same of another replica
manifest.json                        position, versions, each file's digest, and its own; written last
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import asdict, frozen
from safetensors import safe_open

from petra_graph.errors import RunFailed, SpecError
from petra_graph.plugins.loss_and_metric import Scale, scale_of
from petra_graph.record.run_directory import METRICS, sha256_of, writing
from petra_graph.spec.model import CheckpointSpec

if TYPE_CHECKING:
    from torch import Tensor

FORMAT, MANIFEST = 6, "manifest.json"
_FOLDER, _UNFINISHED, _FACTS, _DIGEST = "checkpoints", ".{:012d}.writing", "petra-graph", "sha256"
_AGAIN = "+"  # no folder is written over: one whose cut had another before has this behind its name


class Damaged(SpecError):
    def __init__(self, folder: Path, why: str) -> None:
        super().__init__(f"{folder} is not used: {why}")


@frozen(kw_only=True)
class Manifest:
    """What a checkpoint says of the run at its cut, which is before forward `at` of every stage, counted from the run's start."""

    at: int
    values: Mapping[str, str]  # what the bits depend on, by name
    fixed: Mapping[str, str]  # what a resumed run must have as before
    stages: Sequence[Sequence[str]]  # the nodes of each
    position: Mapping[str, Any]  # a `TrainingPosition`
    metrics: Mapping[str, float]  # the latest evaluation
    files: Mapping[str, str]  # the SHA-256 of each stage's file


def _folders(directory: Path) -> list[tuple[int, Path]]:
    """Return the cuts of a run's checkpoints with their folders, in their order; of the same cut, the later folder is behind the first."""
    found = sorted((directory / _FOLDER).glob("[0-9]*"))
    return [(int(at), folder) for folder in found if (at := folder.name.rstrip(_AGAIN)).isdecimal()]


def numbers(directory: Path) -> list[int]:
    """Return the cuts of a run's complete checkpoints, the latest first."""
    return sorted(dict(_folders(directory)), reverse=True)


def folder_of(directory: Path, at: int) -> Path:
    """Return the folder of a checkpoint, or that which it will have."""
    return dict(_folders(directory)).get(at, directory / _FOLDER / f"{at:012d}")


def stage_file(stage: int, replica: int) -> str:
    return f"stage-{stage:03d}{f'.replica-{replica}' * bool(replica)}.safetensors"


def best_cut(directory: Path, spec: CheckpointSpec, scales: Mapping[str, Scale]) -> int | None:
    """Return the cut of the checkpoint with the best value of `checkpoint.best`, the earliest of equals; None where none has one."""
    if spec.best is None:
        return None
    smallest = scale_of(spec.best, scales).better == "lower"
    values: dict[int, float] = {}
    for at in reversed(numbers(directory)):
        with suppress(Damaged, KeyError):
            values[at] = read_manifest(directory, at).metrics[spec.best]
    return min(values, default=None, key=lambda at: values[at] if smallest else -values[at])


def read_manifest(directory: Path, at: int, *, verified: bool = False) -> Manifest:
    """Read the manifest of a checkpoint, `verified` with all its files; raise Damaged if one is not as it was written, or of another format."""
    folder = folder_of(directory, at)
    try:
        values = json.loads((folder / MANIFEST).read_bytes().decode())
        if values.pop("format") != FORMAT:
            raise Damaged(folder, f"of another version of petra-graph, and this one reads format {FORMAT}")
        if values.pop(_DIGEST) != digest_of(values):
            raise Damaged(folder, f"{MANIFEST} is damaged: its digest is not its own")
        manifest = Manifest(**values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Damaged(folder, f"{MANIFEST} is damaged: {type(error).__name__}: {error}") from None
    for name, digest in manifest.files.items() if verified else ():
        try:
            if sha256_of(folder / name) != digest:
                raise Damaged(folder, f"{name} is damaged, or of another moment: its digest is not the manifest's")
        except OSError as error:
            raise Damaged(folder, f"{name} cannot be read: {error.strerror or error}") from None
    return manifest


def read_stage(directory: Path, at: int, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a stage's tensors and facts."""
    with safe_open(folder_of(directory, at) / name, framework="pt") as opened:
        facts = json.loads(opened.metadata()[_FACTS])
        return {key: opened.get_tensor(key) for key in opened.keys()}, facts  # noqa: SIM118  it is not a mapping


def read_weights(directory: Path, at: int) -> dict[str, Tensor]:
    """Return parameters and buffers of a checkpoint by their names in `weights.safetensors`; raise Damaged if it is."""
    weights: dict[str, Tensor] = {}
    for file in read_manifest(directory, at, verified=True).files:
        tensors = {} if "replica" in file else read_stage(directory, at, file)[0]
        # The last of them win: an optimizer may evaluate at other values than it trains.
        for prefix in ("parameters/", "buffers/", "evaluated/"):
            weights |= {name.removeprefix(prefix): one for name, one in tensors.items() if name.startswith(prefix)}
    return weights


def digest_of(values: Mapping[str, Any]) -> str:
    """Return the digest of a manifest's values, which JSON's readers and writers keep."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def write_stage(directory: Path, at: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> tuple[str, str]:
    """Write a stage's file of a checkpoint that is not complete yet; return its name and SHA-256, or raise RunFailed if nothing could be resumed from it."""
    from petra_graph.record.weights import save_weights  # imports torch, which readers do without

    folder, stage = directory / _FOLDER / _UNFINISHED.format(at), facts["index"]
    for name, one in tensors.items():  # a buffer may hold an infinity for ever, as the mask of an attention does
        trained = name.startswith(("parameters/", "optimizer/")) and one.is_floating_point()
        if trained and not one.isfinite().all():
            raise RunFailed(f"stage {stage} is in no checkpoint before forward {at}: {name} is not finite")
    path = folder / stage_file(stage, facts["replica"])
    with writing(path):
        for made in (folder.parent, folder):  # and not the run's directory, should it have been removed meanwhile
            made.mkdir(exist_ok=True)
        save_weights(path, tensors, {_FACTS: json.dumps({**facts, "at": at})})
        _sync(path)
        return path.name, sha256_of(path)


def finish(directory: Path, manifest: Manifest) -> None:
    """Write the manifest, and give the checkpoint its name; raise RunFailed if the disk refuses, or a file is missing."""
    folder, named = directory / _FOLDER / _UNFINISHED.format(manifest.at), folder_of(directory, manifest.at)
    path, values = folder / MANIFEST, asdict(manifest)
    with writing(path):
        # The files of the run that it needs are on the disk before.
        _sync(*filter(Path.exists, (directory / METRICS, directory / "resolved.toml")), directory)
        written = {"format": FORMAT, **values, _DIGEST: digest_of(values)}
        path.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
        _sync(path, folder)
        folder.rename(named.with_name(named.name + _AGAIN) if named.exists() else named)
        _sync(named.parent)


def keep_only(directory: Path, kept: Container[int | None]) -> None:
    """Remove all other checkpoints; what cannot be removed stays."""
    stay = {folder for at, folder in dict(_folders(directory)).items() if at in kept}
    for _, folder in _folders(directory):
        if folder not in stay:
            removed = folder.with_name(f".{folder.name}")  # at no time is a part of it to be seen
            with suppress(OSError):
                folder.rename(removed)
                shutil.rmtree(removed)


def drop_behind(directory: Path, at: int) -> None:
    """Remove what is damaged, half-written or of another future: the checkpoints behind that before forward `at`, from which the run is resumed."""
    keep_only(directory, [number for number in numbers(directory) if number <= at])
    for folder in (directory / _FOLDER).glob(".*"):
        shutil.rmtree(folder, ignore_errors=True)


def _sync(*paths: Path) -> None:
    """Have the system write files or folders to the disk now."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
