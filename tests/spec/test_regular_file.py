"""Files that are read whole: regular ones, of a largest size."""

from __future__ import annotations

import os

import pytest

from petra_graph.spec.regular_file import read_regular


def test_a_link_to_a_file_is_read(here):
    (here / "a").write_bytes(b"abc")
    (here / "b").symlink_to("a")
    assert read_regular(here / "b") == b"abc"
    assert read_regular(here / "b", 3) == b"abc"


def test_what_never_ends_is_not_read(here):
    """A manifest that was a pipe hung a resumed run, and one linked to /dev/zero ate the memory."""
    os.mkfifo(here / "pipe")
    (here / "zeros").symlink_to("/dev/zero")
    for name in ("pipe", "zeros"):
        with pytest.raises(OSError, match="not a regular file"):
            read_regular(here / name)
    with pytest.raises(IsADirectoryError):
        read_regular(here)


def test_a_long_file_is_refused_before_it_is_in_memory(here):
    with (here / "sparse").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(OSError, match="more than 1 MiB"):
        read_regular(here / "sparse", 2**20)
