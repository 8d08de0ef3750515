"""Real processes over the strict transport, where torch.distributed is needed as well: replicas, and runs that stop and continue."""

from __future__ import annotations

import signal

import pytest

from petra_graph.cli.main import main
from tests.support.forks import RUN, ended, ranks, wait_for_progress
from tests.support.runs import only_run, summary_of, weights_bytes, without_times

pytestmark = [pytest.mark.processes, pytest.mark.slow]
STRICT = "tests.support.strict_processes:main"
SHORT = ("--set", "run.epochs=3")
LONG = ("--set", "run.epochs=30", "--set", "checkpoint.every=10 updates")


def as_without(processes: int, *words: str) -> None:
    """Compare the run with the same one over the usual transport."""
    whole = (*RUN, *words, "--set", "run.directory=whole")
    if processes == 1:
        assert main(whole) == 0
    else:
        with ranks(*[whole] * processes) as running:
            assert ended(running) == [0] * processes
    assert weights_bytes(only_run()) == weights_bytes(only_run("whole"))
    assert without_times(only_run()) == without_times(only_run("whole"))
    assert summary_of(only_run())["status"] == "done"


def test_replicas(shared_folder):
    twice = (*SHORT, "--set", "partition.replicas=2", "--set", "method.accumulation=3")
    with ranks(*[(*RUN, *twice)] * 4, program=STRICT) as running:
        assert ended(running) == [0] * 4, "".join(one.said for one in running)
    as_without(4, *twice)


def test_one_norm_over_all_stages(shared_folder):
    settings = ("method.name=gpipe", "method.schedule=fill-drain", "method.accumulation=4")
    clip = 'optimizer.clip={ by = "norm", limit = 0.1, scope = "global" }'
    words = [*SHORT, *(word for each in (*settings, clip) for word in ("--set", each))]
    with ranks(*[(*RUN, *words)] * 2, program=STRICT) as running:
        assert ended(running) == [0, 0], "".join(one.said for one in running)
    as_without(1, *words)


@pytest.mark.thorough
def test_an_interrupted_run_continues(shared_folder):
    """On two processes, then four, with checkpoints on the way."""
    resumed = ("run", "--resume", "latest")
    with ranks(*[(*RUN, *LONG)] * 2, program=STRICT) as running:
        wait_for_progress()
        running[1].kill(signal.SIGINT)
        assert set(ended(running)) == {130}, "".join(one.said for one in running)
    with ranks(*[resumed] * 4, program=STRICT) as running:
        assert ended(running) == [0] * 4, "".join(one.said for one in running)
    assert len(summary_of(only_run())["resumed_from"]) == 1
    as_without(1, *LONG)
