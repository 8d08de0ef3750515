"""Whatever goes wrong in one process ends all of them soon, with the first cause, and leaves nothing behind."""

import json
import signal
import time
from pathlib import Path

import pytest

from tests.support.forks import ENDLESS, RUN, ended, ranks, under_way, until
from tests.support.runs import only_run, overrides, summary_of

pytestmark = pytest.mark.processes


def failure() -> str:
    assert summary_of(only_run())["status"] == "failed"
    return (only_run() / "failure.txt").read_text()


# --- killed ----------------------------------------------------------------------------------------------------------

KILLED = [(0, "stages 1 to 2", False, "auto"), (1, "stages 3 to 4", True, "auto"), (1, "stages 3 to 4", True, "nccl")]
"""A rank, its stages, whether a launcher keeps the store, and the transport; gloo stands for NCCL here."""


@pytest.mark.parametrize(("victim", "stages", "hosted", "transport"), KILLED)
def test_a_killed_process(shared_folder, victim, stages, hosted, transport):
    """The head's process tells of it and, where that is the one that was killed, the other."""
    with ranks(*[(*RUN, *overrides(f"run.transport={transport}"))] * 2, hosted=hosted) as running:
        until(under_way)
        time.sleep(1.0)  # heartbeats are a quarter of that: meanwhile each has reported its status
        mapped = "".join(Path(f"/proc/{rank.process.pid}/maps").read_text() for rank in running)
        running[victim].kill()
        codes = ended(running)
    assert "/memfd:" in mapped
    assert "/dev/shm/" not in mapped, "a killed process would leave that file"
    assert (codes[victim], codes[1 - victim]) == (-signal.SIGKILL, 1)
    said = running[1 - victim].said
    assert f"rank {victim} ({stages}; process {running[victim].process.pid} on " in said
    assert " has gone without a word" in said
    assert "help: it was killed: by a signal, or by the system for want of memory" in said
    assert "Traceback" not in said
    assert "[c10d]" not in said, "what torch logs of a lost connection"
    assert f"rank {victim} (" in failure()
    if hosted or victim != 0:  # else all that was known has gone with it
        assert "; last heard of " in said
        assert summary_of(only_run())["epochs"] >= 1, "what the head had reached is known"


# --- stuck, raises, not finite, a full disk ----------------------------------------------------------------------------

FAULTY = """\
import time
from petra_graph.catalog.blocks import RevMlp

class Faulty(RevMlp):
    calls = 0

    def residual(self, x):
        if self.training and x.device.type != "meta":
            Faulty.calls += 1
            if Faulty.calls == 40:
                {fault}
        return super().residual(x)
"""


def with_a_fault(fault: str, *settings: str) -> tuple[str, str]:
    """Run two processes of which the second one's first stage has a fault; return what both said, and failure.txt."""
    Path("faulty.py").write_text(FAULTY.format(fault=fault))
    text = ENDLESS.replace('name = "far"\nblock = "rev-mlp"', 'name = "far"\nblock = "faulty:Faulty"')
    Path("shared.toml").write_text(text)
    with ranks(*[(*RUN, *overrides(*settings))] * 2) as running:
        assert ended(running) == [1, 1]
    return "".join(one.said for one in running), failure()


def test_a_process_that_sleeps_for_ever(shared_folder):
    said, reported = with_a_fault("time.sleep(1e6)", "run.watchdog=1.5")
    assert "rank 1: stage 3 (far), " in said
    assert "and run.watchdog allows 1.5" in said
    assert "rank 1: stage 3 (far), " in reported


def test_a_stage_that_raises(shared_folder):
    said, reported = with_a_fault('raise ValueError("no more")')
    assert said.count("ValueError: no more") == 1, "one process tells it"
    assert "rank 1: stage 3 (far) failed in the " in said
    assert "faulty.py" in reported, "the traceback is that of the process where it happened"


def test_a_full_disk(shared_folder):
    """The system refuses files above 32 KiB, as a full disk would, in the process that writes."""
    with ranks(*[(*RUN, "--set", "run.log_every=1")] * 2, file_bytes={1: 32768}) as running:
        assert ended(running) == [1, 1]
    assert "metrics.jsonl: File too large\n" in running[1].said
    assert "metrics.jsonl: File too large" in failure()
    assert all(json.loads(line) for line in (only_run() / "metrics.jsonl").read_text().splitlines())


# --- refused, not met ----------------------------------------------------------------------------------------


def test_specifications_that_differ(shared_folder):
    with ranks((*RUN, "--set", "run.seed=1"), (*RUN, "--set", "run.seed=2")) as running:
        assert ended(running) == [2, 2]
    said = "".join(one.said for one in running)
    assert "rank 1 and rank 0 run different things: run.seed: 1 on rank 0, 2 here" in said
    assert "help: start the same specification, overrides and versions on every machine" in said
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("count", "how", "codes", "said"),
    [
        (1, {"WORLD_SIZE": "2"}, [1], "and rank 1 has not come within"),
        (2, {"RANK": "0"}, [1, 2], "two processes have rank 0: "),
        (
            1,
            {"RANK": "1", "WORLD_SIZE": "2", "hosted": False},
            [2],
            "rank 1 cannot reach the run's store at 127.0.0.1:",
        ),
    ],
    ids=["a rank that never comes", "two of one rank", "a store that is not there"],
)
def test_processes_that_do_not_meet(shared_folder, count, how, codes, said):
    with ranks(*[RUN] * count, **how, PETRA_GRAPH_JOIN_SECONDS="2") as running:
        assert sorted(ended(running)) == codes
    told = "".join(one.said for one in running)
    assert said in told
    assert "Traceback" not in told
