"""Streams that are closed, or whose reader ends first, end no training and cause no traceback."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from tests.support import ROOT
from tests.support.pairwise import thinned
from tests.support.processes import environment
from tests.support.runs import events, only_run, summary_of

RUN = f"run {ROOT}/specs/quickstart.toml --set run.epochs=2 --set run.micro_batches=4"


def shell(command):
    """Run a command of bash in which PETRA stands for the program; return what it printed and its exit codes."""
    program = f"{sys.executable} -m petra_graph"
    text = command.replace("PETRA", program) + '; echo "codes ${PIPESTATUS[@]}"'
    return subprocess.run(
        ["bash", "-c", text], check=False, env=environment(), capture_output=True, text=True, timeout=100
    )


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(f"PETRA {RUN} 2>&1 | head -1", marks=pytest.mark.thorough, id="head"),
        pytest.param(f"PETRA {RUN} --json >&- 2>&-", id="closed"),
    ],
)
def test_a_training_goes_on(here, command):
    """With closed streams, the files of the run got their descriptors, and what was printed went into these files."""
    done = shell(command)
    assert done.stdout.splitlines()[-1].startswith("codes 0"), done
    assert done.stderr == ""
    assert summary_of(only_run())["status"] == "done"
    assert (only_run() / "weights.safetensors").exists()
    assert events(only_run())
    assert tomllib.loads((only_run() / "resolved.toml").read_text())


CLOSED = (">&-", "2>&-", "<&-", ">&- 2>&- <&-")


@pytest.mark.parametrize("closed", thinned(CLOSED, [CLOSED[0], CLOSED[3]]))
def test_a_verb_with_closed_streams(here, closed):
    done = shell(f"PETRA list blocks {closed}")
    assert done.stdout.splitlines()[-1] == "codes 0", done
    assert done.stderr == ""
