"""Whole outputs, to the letter."""

from __future__ import annotations

import pytest

from tests.support.plan_snapshots import FOLDER, SNAPSHOTS


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_what_is_written_is_what_was_looked_at(name):
    assert SNAPSHOTS[name]() == (FOLDER / name).read_text(encoding="utf-8")


def test_no_snapshot_is_left_over():
    assert {path.name for path in FOLDER.iterdir()} == set(SNAPSHOTS)
