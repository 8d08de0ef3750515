"""Real processes that are killed, stopped and started again, in other numbers: the run ends as if nothing had happened."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from petra_graph.cli.main import main
from petra_graph.errors import FailedOnAnotherProcess
from petra_graph.training.process import OneOfSeveral
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
    assert "continues before micro-batch" in launcher.said
    assert "Traceback" not in launcher.said
    assert len(summary_of(only_run())["resumed_from"]) == 1
    assert result_of(only_run()) == result_of(whole_run(TEXT))


def test_other_numbers_of_processes(folder, whole_run):
    """Two, then four, then one: the stages are the same, and so are the bits."""
    with_signals(folder, SIGHUP=(3, 2), SIGTERM=(6, 3))
    for arguments in ([RUN] * 2, [RESUMED] * 4):
        with ranks(*arguments) as running:
            assert set(ended(running)) == {130}
        assert "continue with: petra-graph run --resume runs/" in running[-1].said
    assert main(RESUMED) == 0
    assert len(summary_of(only_run())["resumed_from"]) == 2
    assert result_of(only_run()) == result_of(whole_run(TEXT))


def test_a_run_that_had_ended_is_not_started_again(tmp_path):
    """Killed between its summary and the word to the others, without checkpoints: its directory was removed, and the run trained anew."""
    (tmp_path / "summary.json").write_text('{"status": "done"}')
    process, known = object.__new__(OneOfSeveral), {"directory/0": str(tmp_path)}
    process.world = SimpleNamespace(rank=0, rank_info=SimpleNamespace(restarts=1), launch=known)
    with pytest.raises(FailedOnAnotherProcess) as ended:
        process.resumption(None)
    assert ended.value.exit_code == 0
    assert (tmp_path / "summary.json").exists()
