"""Real processes that are killed, stopped and started again, in other numbers: the run ends as if nothing had happened."""

import signal
from pathlib import Path

import pytest

from petra_graph.cli.main import main
from tests.support.forks import RUN, SPEC, alone, ended, ranks
from tests.support.runs import only_run, overrides, result_of, summary_of

pytestmark = [pytest.mark.processes, pytest.mark.slow]
RESUMED = ("run", "--resume", "latest")
TEXT = SPEC.replace("epochs = 2", "epochs = 10").replace("{ hidden = 12 }", "{ hidden = 12, dropout = 0.1 }")
TEXT = TEXT.replace("[optimizer]", "accumulation = 3\n[optimizer]")
"""A run that takes a second, with dropout and windows of three micro-batches."""
SIGNALS = """\
import os
import signal
import time
from pathlib import Path
from petra_graph.plugins import Callback

class Signals(Callback):
    sent = False

    def trained(self, epoch, micro_batches, means):
        name = {moments}.get((epoch, micro_batches))
        if name and not Path(name).exists():
            Path(name).touch()
            self.sent = True
            os.kill(os.getpid(), getattr(signal, name))
        time.sleep(0.1 * self.sent)
"""
"""The process with the head sends itself signals, each once, and is then slow: the run does not end before all know of the stop."""


@pytest.fixture
def folder(shared_folder):
    (shared_folder / "shared.toml").write_text(TEXT)
    return shared_folder


def with_signals(folder: Path, **moments: tuple[int, int]) -> None:
    """Let signals come after these micro-batches of epochs."""
    (folder / "signals.py").write_text(SIGNALS.format(moments={at: name for name, at in moments.items()}))
    (folder / "shared.toml").write_text(f'{TEXT}\n[[callback]]\nname = "signals:Signals"\n')


def test_a_killed_rank_is_started_again_from_the_latest_checkpoint(folder, whole_run):
    with_signals(folder, SIGKILL=(8, 2))
    every = overrides("checkpoint.every=10 updates")
    with alone(*RUN, *every, "--processes", "2", "--max-restarts", "9") as launcher:
        assert ended([launcher]) == [0]
    assert launcher.said.count("has gone without a word") == 1
    assert "restart 1, from the latest checkpoint in" in launcher.said
    assert "Traceback" not in launcher.said
    assert len(summary_of(only_run())["resumed_from"]) == 1
    assert result_of(only_run()) == result_of(whole_run(TEXT))


def test_other_numbers_of_processes(folder, whole_run):
    """Two, then four, then one: the stages are the same, and so are the bits. A batch system may have a signal of its own."""
    with_signals(folder, SIGUSR1=(3, 2), SIGTERM=(6, 3))
    first = (*RUN, "--set", "checkpoint.signal=SIGUSR1")
    for arguments in ([first] * 2, [RESUMED] * 4):
        with ranks(*arguments) as running:
            assert set(ended(running)) == {130}
        assert "continue with: petra-graph run --resume runs/" in running[-1].said
    assert main(RESUMED) == 0
    assert len(summary_of(only_run())["resumed_from"]) == 2
    assert result_of(only_run()) == result_of(whole_run(TEXT))


KILLED_AT_ITS_END = """\
import os
import signal
from petra_graph.catalog.blocks import RevMlp
from petra_graph.runtime.store import COMPLETE, RunStore

put = RunStore.set

def killed(store, name, value):
    if name == COMPLETE and value is True:
        os.kill(os.getpid(), signal.SIGKILL)
    put(store, name, value)

RunStore.set = killed

class Same(RevMlp):
    pass
"""
"""The process that records ends between its last file, the summary, and its word to the others that all is written."""


def test_a_run_whose_summary_is_written_has_not_failed(folder):
    Path("killed.py").write_text(KILLED_AT_ITS_END)
    Path("shared.toml").write_text(Path("shared.toml").read_text().replace('"rev-mlp"', '"killed:Same"'))
    with ranks(RUN, RUN) as running:
        assert ended(running) == [0, -signal.SIGKILL]
    assert "the run is complete, although rank 1 (stages 3 to 4; process " in running[0].said
    before = summary_of(only_run())
    assert before["status"] == "done"
    with alone(*RUN, "--processes", "2", "--max-restarts", "2", "--set", "run.directory=restarted") as launcher:
        assert ended([launcher]) == [0]
    assert summary_of(only_run("restarted"))["status"] == "done", "it is not trained a second time"
    assert "restart 1" not in launcher.said
