"""Real processes that are killed, stopped and started again, in other numbers: the run ends as if nothing had happened."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from petra_graph.cli.main import main
from tests.support.forks import PATIENCE_SECONDS, RUN, SPEC, Rank, alone, children, ended, free_port, until
from tests.support.processes import environment, torchrun
from tests.support.runs import only_run, summary_of, weights_bytes, without_times

pytestmark = [pytest.mark.processes, pytest.mark.slow]
EPOCHS = 50
EVERY = ("--set", "checkpoint.every=10 updates")


@pytest.fixture
def folder(shared_folder):
    """The specification of a run that takes some seconds, with dropout and windows of three micro-batches."""
    text = SPEC.replace("epochs = 2", f"epochs = {EPOCHS}").replace("{ hidden = 12 }", "{ hidden = 12, dropout = 0.1 }")
    (shared_folder / "shared.toml").write_text(text.replace("[optimizer]", "accumulation = 3\n[optimizer]"))
    return shared_folder


def as_if_nothing_had_happened() -> None:
    """Compare the run with the same one in one process that nothing interrupts."""
    assert main([*RUN, "--set", "run.directory=whole"]) == 0
    assert weights_bytes(only_run()) == weights_bytes(only_run("whole"))
    assert without_times(only_run()) == without_times(only_run("whole"))
    assert summary_of(only_run())["status"] == "done"


def seen() -> int:
    """Lines of the run's events."""
    return sum(path.read_bytes().count(b"\n") for path in Path("runs").glob("*/metrics.jsonl"))


def wait_for_progress(launcher: Rank, lines: int = 40) -> None:
    """Wait until the run has written some events more."""
    before = seen()
    until(lambda: seen() > before + lines or launcher.code is not None)


def test_a_killed_rank_is_started_again_from_the_latest_checkpoint(folder):
    """Rank 0 and rank 1, wherever they are: training, evaluating, or writing a checkpoint."""
    dice = random.Random(0)
    with alone(*RUN, *EVERY, "--processes", "2", "--max-restarts", "9") as launcher:
        until(lambda: list(Path("runs").glob("*/checkpoints/0*")))
        for victim in (1, 0):
            wait_for_progress(launcher, dice.randrange(20, 80))
            os.kill(children(launcher.process.pid)[victim], signal.SIGKILL)
        assert ended([launcher]) == [0]
    assert launcher.said.count("has gone without a word") == 2
    assert "restart 2 of 9, from the latest checkpoint in" in launcher.said
    assert "Traceback" not in launcher.said
    assert len(summary_of(only_run())["resumed_from"]) == 2
    as_if_nothing_had_happened()


SLOW_DISK = """\
import time
from petra_graph.blocks import Buffered
from petra_graph.record import checkpoint

write_stage = checkpoint.write_stage

def slowly(*arguments, **more):
    time.sleep(2 * (more["stage"] == 3))
    return write_stage(*arguments, **more)

checkpoint.write_stage = slowly

class Same(Buffered):
    def forward(self, x):
        return (x,)
"""


def test_a_slow_disk_is_not_an_operation_that_takes_too_long(folder):
    Path("slow_disk.py").write_text(SLOW_DISK)
    text = Path("shared.toml").read_text()
    same = '[[graph.node]]\nname = "same"\nblock = "slow_disk:Same"\n[[graph.node]]'
    Path("shared.toml").write_text(text.replace("[[graph.node]]", same, 1))
    once = ("checkpoint.every=2 updates", "checkpoint.asynchronous=false", "run.epochs=1", "run.watchdog=1")
    with alone(*RUN, *(word for each in once for word in ("--set", each)), "--processes", "2") as launcher:
        assert ended([launcher]) == [0], launcher.said


def test_other_numbers_of_processes(folder):
    """Two, then four, then one: the stages are the same, and so are the bits. A batch system may have a signal of its own."""
    first = (*RUN, "--processes", "2", "--set", "checkpoint.signal=SIGUSR1")
    for arguments, number in (
        (first, signal.SIGUSR1),
        (("run", "--resume", "latest", "--processes", "4"), signal.SIGTERM),
    ):
        with alone(*arguments) as launcher:
            wait_for_progress(launcher)
            launcher.kill(number)
            assert ended([launcher]) == [130]
        assert "go on with: petra-graph run --resume runs/" in launcher.said
    assert main(["run", "--resume", "latest"]) == 0
    assert len(summary_of(only_run())["resumed_from"]) == 2
    as_if_nothing_had_happened()


def test_replicas(folder):
    """Each replica's stages have statistics, inputs and random keys of their own."""
    replicas = ("--set", "partition.replicas=2", "--set", "run.epochs=30")
    with alone(*RUN, *EVERY, *replicas, "--processes", "2", "--max-restarts", "3") as launcher:
        until(lambda: list(Path("runs").glob("*/checkpoints/0*")))
        os.kill(children(launcher.process.pid)[1], signal.SIGKILL)
        assert ended([launcher]) == [0]
    assert summary_of(only_run())["resumed_from"]
    with alone(*RUN, *replicas, "--processes", "2", "--set", "run.directory=whole") as launcher:
        assert ended([launcher]) == [0]
    assert weights_bytes(only_run()) == weights_bytes(only_run("whole"))
    assert without_times(only_run()) == without_times(only_run("whole"))


def test_machines_that_share_no_folder(folder):
    """Two agents in two folders."""
    (folder / "elsewhere").mkdir()
    shutil.copy(folder / "shared.toml", folder / "elsewhere")
    address, once = f"127.0.0.1:{free_port()}", ("--set", "run.epochs=1")
    agents = [torchrun(node, address, (*RUN, *once), "env", "-C", name) for node, name in enumerate(("elsewhere", "."))]
    said = [agent.communicate(timeout=PATIENCE_SECONDS) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    (told,) = [err for out, err in said if "shared: done" in out]
    assert "set run.directory to a folder that all machines share" in told


def test_restarts_of_torchrun(folder):
    """Its agent starts the same command again; a request to stop is not undone by that. Checkpoints come at times."""

    def start(*arguments: str) -> subprocess.Popen[str]:
        launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1")
        where = (
            "--master-addr",
            "127.0.0.1",
            "--master-port",
            "0",
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            "127.0.0.1:0",
        )
        return subprocess.Popen(
            [*launcher, *where, "-m", "petra_graph", *RUN, "--set", "checkpoint.every=0.3 s", *arguments],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    with start() as agent:
        try:
            until(lambda: list(Path("runs").glob("*/checkpoints/0*")))
            os.kill(children(agent.pid)[0], signal.SIGKILL)
            said, _ = agent.communicate(timeout=PATIENCE_SECONDS)
        finally:
            agent.kill()
    assert agent.returncode == 0, said
    assert "goes on before micro-batch" in said
    as_if_nothing_had_happened()
    with start("--set", "run.directory=stopped", "--set", "run.epochs=100000") as agent:
        try:
            until(lambda: list(Path("stopped").glob("*/checkpoints/0*")))
            os.kill(children(agent.pid)[0], signal.SIGINT)
            said, _ = agent.communicate(timeout=PATIENCE_SECONDS)
        finally:
            agent.kill()
    assert agent.returncode != 0
    assert len(list(Path("stopped").iterdir())) == 1
    assert summary_of(only_run("stopped"))["status"] == "interrupted"
