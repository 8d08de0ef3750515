"""Checkpoints as they are written: under another name, until the manifest is on the disk.

Each process writes the files of its own stages, and has the system write them to the disk (`fsync`); the process that records
then writes the manifest, and gives the folder its name.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import asdict
from torch import Tensor

from petra_graph.errors import cannot_write
from petra_graph.record.checkpoint import (
    DIGEST,
    FACTS,
    FOLDER,
    MANIFEST,
    WRITING,
    Manifest,
    StageFile,
    digest_of,
    folder_of,
    numbers,
)
from petra_graph.record.metrics import METRICS
from petra_graph.record.run_directory import sha256_of
from petra_graph.record.weights import save_weights

_REMOVING = ".removing"


def write_stage(
    directory: Path, *, at: int, stage: int, replica: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> StageFile:
    """Write a stage's file of a checkpoint that is not complete yet.

    Raises:
        RunFailed: the disk refuses.
    """
    folder = _unfinished(directory, at)
    name = f"stage-{stage:03d}{f'.replica-{replica}' * bool(replica)}.safetensors"
    path = folder / name
    try:
        for made in (folder.parent, folder):  # and not the run's directory, should it have been removed meanwhile
            made.mkdir(exist_ok=True)
        save_weights(path, tensors, {FACTS: json.dumps({**facts, "at": at})})
        _sync(path)
        size, digest = path.stat().st_size, sha256_of(path)
        return StageFile(name=name, stage=stage, replica=replica, bytes=size, sha256=digest, finite=_finite(tensors))
    except OSError as error:
        raise cannot_write(path, error) from error


def finish(directory: Path, manifest: Manifest) -> None:
    """Write the manifest, and give the checkpoint its name; the files of the run that it needs are on the disk before.

    Raises:
        RunFailed: the disk refuses, or a file is missing.
    """
    folder, named = _unfinished(directory, manifest.at), folder_of(directory, manifest.at)
    path = folder / MANIFEST
    try:
        for needed in (directory / METRICS, directory / "resolved.toml"):
            if needed.exists():
                _sync(needed)
        _sync(directory)
        values = asdict(manifest)
        path.write_text(json.dumps({**values, DIGEST: digest_of(values)}, indent=2) + "\n", encoding="utf-8")
        _sync(path)
        _sync(folder)
        old = named.with_name(f".{named.name}{_REMOVING}")
        if named.exists():  # A kill between the two renames leaves the new one for `repair`.
            shutil.rmtree(old, ignore_errors=True)
            named.rename(old)
        folder.rename(named)
        _sync(named.parent)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def discard(directory: Path, at: int) -> None:
    """Remove the files of a checkpoint that will not be completed."""
    shutil.rmtree(_unfinished(directory, at), ignore_errors=True)


def missing_file(directory: Path, at: int, file: StageFile) -> bool:
    """Whether a file that a process has written cannot be seen here: its folder is not shared."""
    path = _unfinished(directory, at) / file.name
    return not path.is_file() or path.stat().st_size != file.bytes


def keep_only(directory: Path, kept: Sequence[int]) -> None:
    """Remove all other checkpoints; what cannot be removed stays."""
    for at in numbers(directory):
        if at not in kept:
            with suppress(OSError):
                _remove(folder_of(directory, at))


def drop_behind(directory: Path, at: int) -> None:
    """Remove the checkpoints behind that before forward `at`, from which the run is resumed, and half-written ones.

    They are damaged, or of a future that the run may not take: its events end here.
    """
    keep_only(directory, [number for number in numbers(directory) if number <= at])
    for folder in (directory / FOLDER).glob(".*"):
        shutil.rmtree(folder, ignore_errors=True)


def _unfinished(directory: Path, at: int) -> Path:
    named = folder_of(directory, at)
    return named.with_name(f".{named.name}{WRITING}")


def _remove(folder: Path) -> None:
    """Remove a checkpoint; at no time is a part of it to be seen."""
    removed = folder.with_name(f".{folder.name}{_REMOVING}")
    shutil.rmtree(removed, ignore_errors=True)
    folder.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def _finite(tensors: Mapping[str, Tensor]) -> bool:
    trained = (tensor for name, tensor in tensors.items() if name.startswith(("parameters/", "optimizer/")))
    return all(bool(tensor.isfinite().all()) for tensor in trained if tensor.is_floating_point())


def _sync(path: Path) -> None:
    """Have the system write a file or a folder to the disk now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
