"""Blocks that Inductor has compiled: the same bits on one process and on several."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import pytest

from petra_graph.cli.main import main
from tests.support.forks import RUN, alone, ended
from tests.support.runs import only_run, summary_of, weights_bytes

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="lacks a C++ compiler"),
]
COMPILED = (*RUN, "--set", "run.compile=true", "--set", "run.epochs=2")
PATIENCE_SECONDS = 150
"""A machine that has compiled nothing yet also makes headers of its own."""


def one_then_two(words: Sequence[str]) -> int:
    """Train in this process, and then in two that it forks: torch's compiler takes longer to import than to compile this."""
    return main([*words, "--set", "run.directory=one"]) or main(
        [*words, "--set", "run.directory=two", "--processes", "2"]
    )


def test_two_processes_have_the_bits_of_one(shared_folder):
    with alone(*COMPILED, program=f"{__name__}:one_then_two") as both:
        assert ended([both], PATIENCE_SECONDS) == [0], both.said
    assert summary_of(only_run("two"))["processes"] == 2
    assert weights_bytes(only_run("two")) == weights_bytes(only_run("one"))
