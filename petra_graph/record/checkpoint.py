"""Checkpoints as folders of a run's directory: whole, or not there.

    RUN/metrics.jsonl, resolved.toml         without which no run can be resumed; synced before a manifest refers to them
    RUN/checkpoints/000000001500/            the cut before forward 1500 (`program.cut`); with a + behind it, the same cut taken again
        stage-003.safetensors                what stage 3 holds (`executor.state`), and its messages in flight
        stage-003.replica-1.safetensors      the same of another replica
        manifest.json                        position, versions, each file's size and digest, and its own; written last

Nothing in them is pickled. A reader checks the format and every file's digest before it loads anything, so a file that is damaged,
missing, or of another moment is found.
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
from safetensors import SafetensorError, safe_open

from petra_graph.errors import cannot_write
from petra_graph.plugins.loss_and_metric import Scale, scale_of
from petra_graph.record.run_directory import METRICS, sha256_of
from petra_graph.spec.model import CheckpointSpec

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 5
MANIFEST = "manifest.json"
_FOLDER, _FACTS, _DIGEST = "checkpoints", "petra-graph", "sha256"
_AGAIN = "+"
"""No folder is written over: one whose cut had another before has this behind its name."""


class Damaged(Exception):
    """A checkpoint cannot be used; the message says why."""


@frozen(kw_only=True)
class StageFile:
    name: str
    stage: int
    replica: int
    bytes: int
    sha256: str
    finite: bool
    """Whether its parameters are, and the state of its optimizer."""


@frozen(kw_only=True)
class Manifest:
    at: int
    """The cut is before this forward of every stage, counted from the run's start."""
    versions: Mapping[str, str]
    """Of the libraries that the bits depend on."""
    values: Mapping[str, str]
    """The resolved specification, by key."""
    stages: Sequence[Mapping[str, Any]]
    """The nodes of each, with the number of their parameters, and its depth: with the same ones, a resumed run has the same bits."""
    folders: Sequence[str]
    """Of the specification as it was given and of the files that it extends, where modules of blocks may lie."""
    position: Mapping[str, Any]
    """Of the training loop, a `TrainingPosition`."""
    metrics: Mapping[str, float]
    """The latest evaluation."""
    files: Sequence[StageFile]


# --- which there are --------------------------------------------------------------------------------------------------


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


def _unfinished(directory: Path, at: int) -> Path:
    return directory / _FOLDER / f".{at:012d}.writing"


def best_cut(directory: Path, spec: CheckpointSpec, scales: Mapping[str, Scale]) -> int | None:
    """Return the cut of the checkpoint with the best value of `checkpoint.best`, the earliest of equals; None where none has one."""
    if spec.best is None:
        return None
    smallest = scale_of(spec.best, scales).largest_or_smallest == "smallest"
    values: dict[int, float] = {}
    for at in reversed(numbers(directory)):
        with suppress(Damaged, KeyError):
            values[at] = read_manifest(directory, at).metrics[spec.best]
    return min(values, default=None, key=lambda at: values[at] if smallest else -values[at])


# --- read -------------------------------------------------------------------------------------------------------------


def read_manifest(directory: Path, at: int) -> Manifest:
    """Read the manifest of a checkpoint; raise Damaged if it cannot be read, or is of another format."""
    try:
        values = json.loads((folder_of(directory, at) / MANIFEST).read_bytes().decode())
        if isinstance(values, dict) and values.get("format") != FORMAT:
            raise Damaged(f"its format is {values.get('format')!r}, and this petra-graph reads format {FORMAT}")
        if values.pop(_DIGEST) != digest_of(values):
            raise Damaged(f"{MANIFEST} is damaged: its digest is not its own")
        del values["format"]
        return Manifest(**{**values, "files": [StageFile(**file) for file in values["files"]]})
    except OSError as error:
        raise Damaged(f"{MANIFEST} cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Damaged(f"{MANIFEST} is damaged: {type(error).__name__}: {error}") from None


def verify(directory: Path, manifest: Manifest) -> None:
    """Check every file's size and digest; raise Damaged if one is not what was written."""
    for file in manifest.files:
        path = folder_of(directory, manifest.at) / file.name
        try:
            if (size := path.stat().st_size) != file.bytes:
                raise Damaged(f"{file.name} has {size} bytes, and {file.bytes} were written")
            if sha256_of(path) != file.sha256:
                raise Damaged(f"{file.name} is damaged, or of another moment: its digest is not the manifest's")
        except OSError as error:
            raise Damaged(f"{file.name} cannot be read: {error.strerror or error}") from None


def read_stage(directory: Path, at: int, file: StageFile) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a stage's tensors and facts; raise Damaged if the file cannot be read."""
    try:
        with safe_open(folder_of(directory, at) / file.name, framework="pt") as opened:
            facts = json.loads((opened.metadata() or {}).get(_FACTS, "{}"))
            return {name: opened.get_tensor(name) for name in opened.keys()}, facts  # noqa: SIM118  it is not a mapping
    except (OSError, SafetensorError, ValueError, AttributeError, RecursionError) as error:
        raise Damaged(f"{file.name} cannot be read: {error}") from None


def read_weights(directory: Path, at: int, nodes: Container[str] | None = None) -> dict[str, Tensor]:
    """Return parameters and buffers of a checkpoint that is whole, of all nodes or of some, by their names in `weights.safetensors`.

    Raises:
        Damaged: the checkpoint is not whole.
    """
    manifest = read_manifest(directory, at)
    verify(directory, manifest)
    weights: dict[str, Tensor] = {}
    for file in manifest.files:
        tensors = {} if file.replica else read_stage(directory, at, file)[0]
        # The last of them win: an optimizer may evaluate at other values than it trains.
        for prefix in ("parameters/", "buffers/", "evaluated/"):
            weights |= {name.removeprefix(prefix): one for name, one in tensors.items() if name.startswith(prefix)}
    return {name: one for name, one in weights.items() if nodes is None or name.partition("/")[0] in nodes}


def digest_of(values: Mapping[str, Any]) -> str:
    """Return the digest of a manifest's values, which JSON's readers and writers keep."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


# --- written aside, until the manifest is on the disk -----------------------------------------------------------------

# Each process writes the files of its own stages, and has the system write them to the disk (`fsync`); the process that records
# then writes the manifest, and gives the folder its name.


def write_stage(directory: Path, at: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> StageFile:
    """Write a stage's file of a checkpoint that is not complete yet; raise RunFailed if the disk refuses."""
    from petra_graph.record.weights import save_weights  # imports torch, which readers do without

    folder, stage, replica = _unfinished(directory, at), facts["index"], facts["replica"]
    name = f"stage-{stage:03d}{f'.replica-{replica}' * bool(replica)}.safetensors"
    path = folder / name
    try:
        for made in (folder.parent, folder):  # and not the run's directory, should it have been removed meanwhile
            made.mkdir(exist_ok=True)
        save_weights(path, tensors, {_FACTS: json.dumps({**facts, "at": at})})
        _sync(path)
        size, digest = path.stat().st_size, sha256_of(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    return StageFile(name=name, stage=stage, replica=replica, bytes=size, sha256=digest, finite=_finite(tensors))


def finish(directory: Path, manifest: Manifest) -> None:
    """Write the manifest, and give the checkpoint its name; raise RunFailed if the disk refuses, or a file is missing."""
    folder, named = _unfinished(directory, manifest.at), folder_of(directory, manifest.at)
    path, values = folder / MANIFEST, {"format": FORMAT, **asdict(manifest)}
    try:
        # The files of the run that it needs are on the disk before.
        _sync(*filter(Path.exists, (directory / METRICS, directory / "resolved.toml")), directory)
        path.write_text(json.dumps({**values, _DIGEST: digest_of(values)}, indent=2) + "\n", encoding="utf-8")
        _sync(path, folder)
        folder.rename(named.with_name(named.name + _AGAIN) if named.exists() else named)
        _sync(named.parent)
    except OSError as error:
        raise cannot_write(path, error) from error


def discard(directory: Path, at: int) -> None:
    """Remove the files of a checkpoint that will not be completed."""
    shutil.rmtree(_unfinished(directory, at), ignore_errors=True)


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
    """Remove the checkpoints behind that before forward `at`, from which the run is resumed, and half-written ones.

    They are damaged, or of a future that the run may not take: its events end here.
    """
    keep_only(directory, [number for number in numbers(directory) if number <= at])
    for folder in (directory / _FOLDER).glob(".*"):
        shutil.rmtree(folder, ignore_errors=True)


def _finite(tensors: Mapping[str, Tensor]) -> bool:
    trained = (tensor for name, tensor in tensors.items() if name.startswith(("parameters/", "optimizer/")))
    return all(bool(tensor.isfinite().all()) for tensor in trained if tensor.is_floating_point())


def _sync(*paths: Path) -> None:
    """Have the system write files or folders to the disk now."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
