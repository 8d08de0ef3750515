"""Real processes that are killed, stopped and started again, in other numbers: the run ends as if nothing had happened."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from petra_graph.cli.main import main
from tests.support.forks import RUN, SPEC, alone, children, ended, ranks, until, wait_for_progress
from tests.support.runs import only_run, overrides, summary_of, weights_bytes, without_times

pytestmark = [pytest.mark.processes, pytest.mark.slow]
EVERY = overrides("checkpoint.every=10 updates")
RESUMED = ("run", "--resume", "latest")


@pytest.fixture
def folder(shared_folder):
    """The specification of a run that takes a second, with dropout and windows of three micro-batches."""
    text = SPEC.replace("epochs = 2", "epochs = 15").replace("{ hidden = 12 }", "{ hidden = 12, dropout = 0.1 }")
    (shared_folder / "shared.toml").write_text(text.replace("[optimizer]", "accumulation = 3\n[optimizer]"))
    return shared_folder


@pytest.fixture
def as_if_nothing_had_happened(folder, whole_run):
    """Compare the run with the same one in one process that nothing interrupts."""

    def compare() -> None:
        whole = whole_run((folder / "shared.toml").read_text())
        assert weights_bytes(only_run()) == weights_bytes(whole)
        assert without_times(only_run()) == without_times(whole)
        assert summary_of(only_run())["status"] == "done"

    return compare


def newest_checkpoint() -> str:
    return max((path.name for path in Path("runs").glob("*/checkpoints/0*")), default="")


def test_a_killed_rank_is_started_again_from_the_latest_checkpoint(as_if_nothing_had_happened):
    """Wherever it is: training, evaluating, or writing a checkpoint."""
    with alone(*RUN, *EVERY, "--processes", "2", "--max-restarts", "9", ranks_fork=True) as launcher:
        until(newest_checkpoint)
        wait_for_progress(5)
        os.kill(children(launcher.process.pid)[0], signal.SIGKILL)
        assert ended([launcher]) == [0]
    assert launcher.said.count("has gone without a word") == 1
    assert "restart 1, from the latest checkpoint in" in launcher.said
    assert "Traceback" not in launcher.said
    assert len(summary_of(only_run())["resumed_from"]) == 1
    as_if_nothing_had_happened()


def test_other_numbers_of_processes(as_if_nothing_had_happened):
    """Two, then four, then one: the stages are the same, and so are the bits. A batch system may have a signal of its own."""
    first = (*RUN, "--set", "checkpoint.signal=SIGUSR1")
    for arguments, number in (([first] * 2, signal.SIGUSR1), ([RESUMED] * 4, signal.SIGTERM)):
        with ranks(*arguments) as running:
            wait_for_progress(5)
            running[0].kill(number)
            assert set(ended(running)) == {130}
        assert "continue with: petra-graph run --resume runs/" in running[-1].said
    assert main(RESUMED) == 0
    assert len(summary_of(only_run())["resumed_from"]) == 2
    as_if_nothing_had_happened()


def test_restarts_of_torchrun(folder):
    """Its agent starts the same command again; a request to stop is not undone by that. Checkpoints come at times."""
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")
    endless = overrides("checkpoint.every=0.3 s", "run.epochs=100000")
    words = ("--nproc-per-node", "2", "--max-restarts", "2", *meeting, "-m", "petra_graph", *RUN, *endless)
    with alone(*words, program="torch.distributed.run:main", ranks_fork=True) as agent:
        for number in (signal.SIGKILL, signal.SIGINT):
            before = newest_checkpoint()
            until(lambda before=before: newest_checkpoint() > before or agent.code is not None)
            os.kill(children(agent.process.pid)[0], number)
        assert ended([agent]) != [0]
    assert "continues before micro-batch" in agent.said
    assert len(list(Path("runs").iterdir())) == 1
    summary = summary_of(only_run())
    assert (summary["status"], len(summary["resumed_from"])) == ("interrupted", 1)


SLOW_DISK = """\
import time
from petra_graph.catalog.blocks import RevMlp
from petra_graph.training import checkpoint

write_stage = checkpoint.write_stage

def slowly(*arguments, **more):
    time.sleep(2 * (more["stage"] == 3))
    return write_stage(*arguments, **more)

checkpoint.write_stage = slowly

class Same(RevMlp):
    pass
"""


def test_a_slow_disk_is_not_an_operation_that_takes_too_long(folder):
    Path("slow_disk.py").write_text(SLOW_DISK)
    Path("shared.toml").write_text(Path("shared.toml").read_text().replace('"rev-mlp"', '"slow_disk:Same"'))
    slow = (*RUN, *overrides("checkpoint.every=2 updates", "run.epochs=1", "run.watchdog=1"))
    with ranks(slow, slow) as running:
        assert ended(running) == [0, 0], running[1].said


def test_machines_that_share_no_folder(folder):
    """Two processes in two folders."""
    (folder / "elsewhere").mkdir()
    shutil.copy(folder / "shared.toml", folder / "elsewhere")
    once = (*RUN, "--set", "run.epochs=1")
    with ranks(once, once, folders=("elsewhere", ".")) as running:
        assert ended(running) == [0, 0]
    (told,) = [rank.said for rank in running if "shared: done" in rank.said]
    assert "set run.directory to a folder that all machines share" in told
