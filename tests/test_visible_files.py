"""The files below a folder."""

from __future__ import annotations

import os
from errno import ELOOP

import pytest

from petra_graph.visible_files import visible_files


def found(folder):
    return sorted(os.path.relpath(file, folder) for file in visible_files(folder))


def test_hidden_ones_and_pipes_are_left_out(tmp_path):
    for name in ("a.png", "._a.png", "below/b.png", ".cache/c.png", "below/.d.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.png")
    assert found(tmp_path) == ["a.png", "below/b.png"]


def test_folders_may_be_nested_as_deep_as_a_path_can_be_long(tmp_path):
    """At a thousand nested folders, Python's own limit of calls was met, with a traceback."""
    folders = [f"{tmp_path}{'/d' * depth}" for depth in range(1, 1_101)]
    for folder in folders:
        os.mkdir(folder)  # noqa: PTH102  Path's own are recursive
    with open(f"{folders[-1]}/a.png", "wb"):  # noqa: PTH123
        pass
    try:
        assert list(visible_files(tmp_path)) == [f"{folders[-1]}/a.png"]
    finally:
        os.unlink(f"{folders[-1]}/a.png")  # noqa: PTH108
        os.removedirs(folders[-1])


def test_a_link_to_a_folder_is_followed_unless_it_leads_back(tmp_path):
    """Each image was read once for every round that a path can take, 40 times."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "others").mkdir()
    (tmp_path / "others/a.png").write_bytes(b"")
    (tmp_path / "photos/link").symlink_to(tmp_path / "others")
    assert found(tmp_path / "photos") == ["link/a.png"]
    (tmp_path / "others/back").symlink_to(tmp_path / "photos")
    with pytest.raises(OSError, match="it is a link to a folder that it is in") as caught:
        found(tmp_path / "photos")
    assert (caught.value.errno, caught.value.filename) == (ELOOP, f"{tmp_path}/photos/link/back")
