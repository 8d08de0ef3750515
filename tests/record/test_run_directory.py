"""A run's directory: new each time, and nothing in it half-written."""

from __future__ import annotations

import os
import sys

import pytest
import torch

from petra_graph.record import run_directory
from petra_graph.record.run_directory import create_run_directory, environment, write_text, write_whole
from petra_graph.record.weights import save_weights


def test_a_directory_that_exists_is_never_taken(tmp_path, monkeypatch):
    """Twice the same second and the same chance, then another."""
    chances = iter(["aaaaaa", "aaaaaa", "bbbbbb"])
    monkeypatch.setattr(run_directory.secrets, "token_hex", lambda _: next(chances))
    clock = run_directory.datetime.now(run_directory.UTC)
    monkeypatch.setattr(run_directory, "datetime", type("FakeClock", (), {"now": staticmethod(lambda _: clock)}))
    first = create_run_directory(str(tmp_path), "digits")
    (first / "kept").write_text("x")
    second = create_run_directory(str(tmp_path), "digits")
    assert (first.name[-6:], second.name[-6:]) == ("aaaaaa", "bbbbbb")
    assert [path.name for path in first.iterdir()] == ["kept"]


def half_then(error: BaseException):
    def write(temporary):
        temporary.write_text("half")
        raise error

    return write


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt()])
def test_any_other_end_leaves_the_old_file_and_no_temporary_too(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(type(error)):
        write_whole(path, half_then(error))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_all_files_have_the_permissions_of_the_umask(tmp_path):
    """Weights were 0600 and all else 0644: what safetensors writes is for its writer alone."""
    before = os.umask(0o027)
    try:
        save_weights(tmp_path / "weights.safetensors", {"a": torch.zeros(1)})
        write_text(tmp_path / "a.txt", "a")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("data.options.api_key=abc", "data.options.api_key=***"),
        ("callback.options.token=abc=d", "callback.options.token=***"),
        ("--set=callback.0.options.api_key=abc", "--set=callback.0.options.api_key=***"),
        ('callback=[{name = "x", options = {"api_key" = "abc"}}]', 'callback=[{name = "x", options = {"api_key" = ***'),
        ("run.seed=3", "run.seed=3"),
        ("name=token", "name=token"),
    ],
)
def test_values_of_secrets_are_not_kept(word, kept, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["petra-graph", "run", "a.toml", "--set", word])
    assert environment()["command"][-1] == kept
