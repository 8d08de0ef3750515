"""Streams that are closed, or whose reader ends first, end no training and cause no traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support import ROOT
from tests.support.processes import environment
from tests.support.runs import only_run, summary_of

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
        pytest.param(f"PETRA {RUN} >&- 2>&-", id="closed"),
    ],
)
def test_a_training_goes_on(here, command):
    done = shell(command)
    assert done.stdout.splitlines()[-1].startswith("codes 0"), done
    assert done.stderr == ""
    assert summary_of(only_run())["status"] == "done"
    assert (only_run() / "weights.safetensors").exists()


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_verb_with_closed_streams(here, closed):
    done = shell(f"PETRA list blocks {closed}")
    assert done.stdout.splitlines()[-1] == "codes 0", done
    assert done.stderr == ""


def test_a_file_opened_later_is_not_taken_for_a_closed_stream(here):
    """With standard output closed, the plan's file got its descriptor, and what was printed went into the file."""
    done = shell(f"PETRA plan {ROOT}/specs/quickstart.toml --json --output plan.json >&- 2>&-")
    assert done.stdout.splitlines()[-1] == "codes 0"
    assert (here / "plan.json").read_text().endswith("}\n")
