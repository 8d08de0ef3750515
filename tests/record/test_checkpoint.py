"""A checkpoint is whole or not there; what is damaged, missing, foreign or of two moments is found before anything is loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from petra_graph.errors import RunFailed
from petra_graph.record import checkpoint
from petra_graph.record.checkpoint import FORMAT, Damaged, Manifest, folder_of
from tests.support.runs import small_files

FACTS = {"updates": 3, "window": 0, "weight": 0.0, "inputs": {}, "messages": []}
POSITION = {
    "epoch": 1,
    "evaluates": False,
    "micro_batches_per_epoch": 200,
    "since": 0,
    "updates": 3,
    "seconds": 0.5,
    "epoch_began": [0.0, 0],
    "train": {"loss": 0.5, "metric": float("nan")},
    "resumed_from": [],
    "epochs": [],
    "metrics_bytes": 0,
}


def write(directory, at, value=1.0, stages=(1, 2)):
    files = [
        checkpoint.write_stage(
            directory,
            at=at,
            stage=stage,
            replica=0,
            tensors={"parameters/a/w": torch.full((4,), value * stage)},
            facts={**FACTS, "index": stage},
        )
        for stage in stages
    ]
    manifest = Manifest(
        format=FORMAT,
        at=at,
        run="run",
        versions={},
        values={},
        stages=[{"nodes": {node: 4}, "depth": 1} for node in "ab"],
        folders=[],
        position={**POSITION, "micro_batches": at},
        metrics={},
        files=files,
    )
    checkpoint.finish(directory, manifest)
    return manifest


def read(directory, at):
    manifest = checkpoint.read_manifest(directory, at)
    checkpoint.verify(directory, manifest)
    return [checkpoint.read_stage(directory, at, file) for file in manifest.files]


@pytest.mark.parametrize("name", ["parameters/a/w", "optimizer/a/w/momentum_buffer", "buffers/a/mask"])
def test_whether_numbers_are_finite(tmp_path, name):
    """A block's buffer may hold an infinity for ever, as the mask of an attention does."""
    tensors = {name: torch.tensor([1.0, float("inf")]), "parameters/a/count": torch.tensor([1])}
    file = checkpoint.write_stage(tmp_path, at=3, stage=1, replica=0, tensors=tensors, facts=FACTS)
    assert file.finite == name.startswith("buffers")


def test_the_latest_comes_first_and_old_ones_go(tmp_path):
    for at in (5, 100, 20):
        write(tmp_path, at)
    assert checkpoint.numbers(tmp_path) == [100, 20, 5]
    checkpoint.keep_only(tmp_path, [100, 5])
    assert checkpoint.numbers(tmp_path) == [100, 5]
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"000000000005", "000000000100"}


def test_until_the_manifest_is_there_nothing_is_to_be_seen(tmp_path):
    checkpoint.write_stage(tmp_path, at=3, stage=1, replica=0, tensors={}, facts=FACTS)
    assert checkpoint.numbers(tmp_path) == []
    checkpoint.drop_behind(tmp_path, 3)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_the_same_moment_again_is_the_later_one(tmp_path):
    write(tmp_path, 7, value=1.0)
    write(tmp_path, 7, value=5.0)
    assert read(tmp_path, 7)[0][0]["parameters/a/w"].tolist() == [5.0] * 4
    assert checkpoint.numbers(tmp_path) == [7]
    checkpoint.keep_only(tmp_path, [7])
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1


class Killed(BaseException):
    pass


def test_a_kill_before_the_rename_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    write(tmp_path, 7, value=1.0)

    def killed(_path, _target):
        raise Killed

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(Killed):
        write(tmp_path, 7, value=5.0)
    monkeypatch.undo()
    assert read(tmp_path, 7)[0][0]["parameters/a/w"].tolist() == [1.0] * 4
    checkpoint.drop_behind(tmp_path, 7)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["000000000007"]


def stage_file(directory, at=7, stage=1):
    return folder_of(directory, at) / f"stage-{stage:03d}.safetensors"


def bent(path, change):
    content = bytearray(path.read_bytes())
    path.write_bytes(bytes(change(content)))


def flipped(content):
    content[-3] ^= 1
    return content


def of_two_moments(directory):
    shutil.copy(stage_file(directory, at=8), stage_file(directory))


def of_two_moments_with_its_digest(directory):
    of_two_moments(directory)
    manifest = json.loads((folder_of(directory, 7) / "manifest.json").read_text())
    other = json.loads((folder_of(directory, 8) / "manifest.json").read_text())
    manifest["files"][0] = other["files"][0]
    signed(folder_of(directory, 7) / "manifest.json", manifest)


def signed(path, values):
    """Write a manifest whose digest is right."""
    values.pop("sha256", None)
    path.write_text(json.dumps({**values, "sha256": checkpoint.digest_of(values)}))


def manifest_with(**values):
    def change(directory):
        path = folder_of(directory, 7) / "manifest.json"
        signed(path, {**json.loads(path.read_text()), **values})

    return change


def flipped_digit(directory):
    path = folder_of(directory, 7) / "manifest.json"
    path.write_text(path.read_text().replace('"epoch": 1', '"epoch": 3'))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda d: bent(stage_file(d), lambda content: content[:-1]), "has .* bytes, and .* were written"),
        (lambda d: bent(stage_file(d), flipped), "is damaged, or of another moment"),
        (lambda d: stage_file(d).unlink(), "cannot be read: No such file"),
        (of_two_moments, "is damaged, or of another moment"),
        (of_two_moments_with_its_digest, "is of stage 1 before forward 8"),
        (lambda d: (folder_of(d, 7) / "manifest.json").unlink(), "manifest.json cannot be read: No such file"),
        (lambda d: (folder_of(d, 7) / "manifest.json").write_text("{"), "manifest.json is damaged"),
        (lambda d: (folder_of(d, 7) / "manifest.json").write_text("[]"), "manifest.json is damaged"),
        (manifest_with(format=FORMAT + 1), f"its format is {FORMAT + 1}, and this petra-graph reads format {FORMAT}"),
        (manifest_with(at=9, position={**POSITION, "micro_batches": 9}), "manifest.json is of forward 9"),
        (manifest_with(more=1), "manifest.json is damaged: TypeError"),
        (lambda d: (folder_of(d, 7) / "manifest.json").write_text("[" * 100_000), "is damaged: RecursionError"),
        (flipped_digit, "manifest.json is damaged: its digest is not its own"),
    ],
)
def test_what_is_damaged_is_refused_with_its_reason(tmp_path, damage, reason):
    write(tmp_path, 7)
    write(tmp_path, 8)
    damage(tmp_path)
    with pytest.raises(Damaged, match=reason):
        read(tmp_path, 7)
    assert len(read(tmp_path, 8)) == 2


def test_what_a_checkpoint_needs_is_on_the_disk_before_its_manifest(tmp_path, monkeypatch):
    """The events were never synced: after a loss of power, a whole checkpoint referred to events that were gone."""
    for name in ("metrics.jsonl", "resolved.toml"):
        (tmp_path / name).touch()
    synced = []
    monkeypatch.setattr(checkpoint, "_sync", lambda path: synced.append(path.name))
    write(tmp_path, 7)
    of_the_run = ["metrics.jsonl", "resolved.toml", tmp_path.name]
    assert synced[2:] == [*of_the_run, "manifest.json", ".000000000007.writing", "checkpoints"]


def test_a_run_directory_that_is_removed_does_not_come_back(tmp_path):
    with pytest.raises(RunFailed, match="No such file or directory"):
        write(tmp_path / "run", 7)
    assert not (tmp_path / "run").exists()


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path):
    write(tmp_path, 7)
    with small_files(64), pytest.raises(RunFailed, match="cannot write"):
        write(tmp_path, 8)
    assert checkpoint.numbers(tmp_path) == [7]
    assert len(read(tmp_path, 7)) == 2
