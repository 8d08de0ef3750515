"""A trial of a fault tells a run that ends as it should from one that does not."""

from __future__ import annotations

import random
import signal

import pytest

from tools.faults import a_signal, judged, run_in_a_folder

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.mark.thorough
def test_a_signal_ends_a_run_as_it_should():
    outcome = a_signal(random.Random(58), 1)
    assert outcome.what.startswith("SIG")
    assert outcome.faults == ()


def test_what_is_not_as_it_should_be_is_listed():
    with run_in_a_folder() as run:
        process = run.start("--set", "run.epochs=many")
        process.wait(60)
        outcome = judged(run, "a mistake", codes={130}, statuses=set(), says="interrupted")
    assert outcome.faults[0] == "exit codes [2]"
    assert outcome.faults[1].startswith("no 'interrupted' in ")
    assert process.returncode != -signal.SIGKILL
