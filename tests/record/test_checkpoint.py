"""A checkpoint is whole or not there; what is damaged, missing, foreign or of two moments is found before anything is loaded."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from petra_graph.errors import RunFailed
from petra_graph.record import checkpoint
from petra_graph.record.checkpoint import FORMAT, MANIFEST, Damaged, Manifest, folder_of
from tests.support.runs import small_files

POSITION = {"epoch": 1, "train": {"loss": 0.5, "metric": float("nan")}, "metrics_bytes": 0}


def stage(directory, at=3, index=1, tensors=None):
    return checkpoint.write_stage(directory, at, tensors or {}, {"index": index, "replica": 0})


def write(directory, at, value=1.0):
    files = dict(stage(directory, at, index, {"parameters/a/w": torch.full((4,), value * index)}) for index in (1, 2))
    manifest = Manifest(at=at, values={}, fixed={}, stages=[], position=POSITION, metrics={}, files=files)
    checkpoint.finish(directory, manifest)


def read(directory, at):
    manifest = checkpoint.read_manifest(directory, at, verified=True)
    return [checkpoint.read_stage(directory, at, file) for file in manifest.files]


def there(directory):
    return sorted(path.name for path in (directory / "checkpoints").iterdir())


@pytest.mark.parametrize("name", ["parameters/a/w", "optimizer/a/w/momentum_buffer", "buffers/a/mask"])
def test_whether_numbers_are_finite(tmp_path, name):
    """A block's buffer may hold an infinity for ever, as the mask of an attention does."""
    tensors = {name: torch.tensor([1.0, float("inf")]), "parameters/a/count": torch.tensor([1])}
    wrong = nullcontext() if name.startswith("buffers") else pytest.raises(RunFailed, match=f"{name} is not finite")
    with wrong:
        stage(tmp_path, tensors=tensors)


def test_the_latest_comes_first_and_old_ones_go(tmp_path):
    for at in (5, 100, 20):
        write(tmp_path, at)
    assert checkpoint.numbers(tmp_path) == [100, 20, 5]
    checkpoint.keep_only(tmp_path, [100, 5])
    assert checkpoint.numbers(tmp_path) == [100, 5]
    assert there(tmp_path) == ["000000000005", "000000000100"]


def test_until_the_manifest_is_there_nothing_is_to_be_seen(tmp_path):
    stage(tmp_path)
    assert checkpoint.numbers(tmp_path) == []
    checkpoint.drop_behind(tmp_path, 3)
    assert there(tmp_path) == []


def test_the_same_moment_again_is_the_later_one(tmp_path):
    write(tmp_path, 7, value=1.0)
    write(tmp_path, 7, value=5.0)
    for _ in ("both are there", "the first is gone"):
        assert read(tmp_path, 7)[0][0]["parameters/a/w"].tolist() == [5.0] * 4
        assert checkpoint.numbers(tmp_path) == [7]
        checkpoint.keep_only(tmp_path, [7])
    assert len(there(tmp_path)) == 1


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
    assert there(tmp_path) == ["000000000007"]


def stage_file(directory, at=7):
    return folder_of(directory, at) / "stage-001.safetensors"


def shortened(directory):
    path = stage_file(directory)
    path.write_bytes(path.read_bytes()[:-1])


def flipped(directory):
    content = bytearray(stage_file(directory).read_bytes())
    content[-3] ^= 1
    stage_file(directory).write_bytes(bytes(content))


def of_two_moments(directory):
    shutil.copy(stage_file(directory, at=8), stage_file(directory))


def manifest_with(**values):
    """Write a manifest with other values, whose digest is right."""

    def change(directory):
        path = folder_of(directory, 7) / MANIFEST
        changed = {**json.loads(path.read_text()), **values}
        own = {key: value for key, value in changed.items() if key not in {"format", "sha256"}}
        path.write_text(json.dumps({**changed, "sha256": checkpoint.digest_of(own)}))

    return change


def manifest_is(text):
    return lambda directory: (folder_of(directory, 7) / MANIFEST).write_text(text)


def flipped_digit(directory):
    path = folder_of(directory, 7) / MANIFEST
    path.write_text(path.read_text().replace('"epoch": 1', '"epoch": 3'))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (shortened, "is damaged, or of another moment"),
        (flipped, "is damaged, or of another moment"),
        (lambda d: stage_file(d).unlink(), "cannot be read: No such file"),
        (of_two_moments, "is damaged, or of another moment"),
        (lambda d: (folder_of(d, 7) / MANIFEST).unlink(), "manifest.json is damaged: FileNotFoundError"),
        (manifest_is("{"), "manifest.json is damaged"),
        (manifest_is("[]"), "manifest.json is damaged"),
        (manifest_with(format=FORMAT + 1), f"another version of petra-graph, and this one reads format {FORMAT}"),
        (manifest_with(more=1), "manifest.json is damaged: TypeError"),
        (manifest_is("[" * 100_000), "is damaged: RecursionError"),
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
    monkeypatch.setattr(checkpoint, "_sync", lambda *paths: synced.extend(path.name for path in paths))
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
