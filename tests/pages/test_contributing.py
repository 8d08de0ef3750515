"""The files that CONTRIBUTING names are there."""

from __future__ import annotations

import re

from tests.support import ROOT

TEXT = (ROOT / ".github" / "CONTRIBUTING.md").read_text()


def test_every_file_that_is_named_is_there():
    named = set(re.findall(r"(?:petra_graph|tests|tools|plugins|specs)/[\w./-]*\w", TEXT))
    assert len(named) > 10
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_every_make_target_that_is_named_is_there():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z]+)(?: |$)", TEXT, re.MULTILINE)) <= targets
