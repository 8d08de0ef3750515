"""Blocks that Inductor has compiled: the same bits on one process and on several."""

from __future__ import annotations

import pytest

from petra_graph.planning import cpp_compiler
from tests.support.forks import RUN, alone, ended
from tests.support.runs import only_run, summary_of, weights_bytes

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(bool(cpp_compiler.lacking()), reason=f"lacks {cpp_compiler.lacking()}"),
]
COMPILED = (*RUN, "--set", "run.compile=true", "--set", "run.epochs=2")
PATIENCE_SECONDS = 150
"""A machine that has compiled nothing yet also makes headers of its own."""


def test_two_processes_have_the_bits_of_one(shared_folder):
    with alone(*COMPILED, "--set", "run.directory=one") as one:
        assert ended([one], PATIENCE_SECONDS) == [0], one.said
    with alone(*COMPILED, "--processes", "2", "--set", "run.directory=two", ranks_fork=True) as two:
        assert ended([two], PATIENCE_SECONDS) == [0], two.said
    assert summary_of(only_run("two"))["processes"] == 2
    assert weights_bytes(only_run("two")) == weights_bytes(only_run("one"))
