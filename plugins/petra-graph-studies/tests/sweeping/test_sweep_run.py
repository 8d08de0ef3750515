"""Sweeps as processes: what is killed in the middle continues, and every run has the bits of a single one."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from petra_graph_studies.sweeping.sweep_folder import Sweep
from petra_graph_studies.sweeping.sweep_run import reopen_sweep

import petra_graph as pg
from petra_graph.cli.main import main
from petra_graph.errors import SpecError
from tests.support.forks import ENDLESS, SPEC, alone, at_work_in, children, ended, forked_member, start_server, until
from tests.support.runs import only_run, weights_bytes, without_times

SIX_EPOCHS = SPEC.replace("epochs = 2", "epochs = 6").replace("train = 64", "train = 32")
LONGER = SIX_EPOCHS + "[checkpoint]\nevery = '1 epoch'\n"
TWELVE = (
    *("run", "shared.toml", "--sweep", "optimizer.options.lr=0.01,0.03", "--sweep", "method.name=petra,backprop"),
    *("--seeds", "3", "--at-once", "2"),
)

pytestmark = pytest.mark.processes


@pytest.fixture
def spec(here):
    start_server()
    (here / "shared.toml").write_text(LONGER)
    yield here
    try:
        until(lambda: at_work_in(here) == [], 30)  # a process may need a moment after its last line
    finally:
        for process in Path("/proc").glob("[0-9]*"):  # what no sweep stopped, lest it trains on after the test
            with suppress(OSError):
                if int(process.name) != os.getpid() and (process / "cwd").readlink() == here:
                    os.kill(int(process.name), signal.SIGKILL)


def sweep_of(folder="runs"):
    return Sweep.read(only_run(folder))


def statuses():
    return [member.status() for member in sweep_of().members]


def swept(*words):
    with alone(*words, ranks_fork=True) as process:
        code = ended([process])[0]
        return code, process.said


def until_with(process, condition):
    """Wait until something holds of the sweep that a process carries out."""

    def holds():
        assert process.code is None, process.said
        return list(Path("runs").glob("*/sweep.json")) and condition()

    until(holds)


def kill_in_the_middle(sweep):
    """Kill a sweep with its runs while one of them has a checkpoint and has not ended; return whether one had."""
    processes = [sweep.process.pid, *children(sweep.process.pid)]
    signal_all(processes, signal.SIGSTOP)
    begun = [member.directory for member in sweep_of().members if member.status() == "running"]
    if any(list(one.glob("checkpoints/*/manifest.json")) and not (one / "summary.json").exists() for one in begun):
        signal_all(processes[1:], signal.SIGKILL)
        sweep.kill()
        sweep.process.join()
        return True
    signal_all(processes, signal.SIGCONT)
    return False


def signal_all(processes, number):
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.mark.thorough
@pytest.mark.slow
def test_twelve_runs_killed_in_the_middle_continue_with_the_bits_of_single_runs(spec):
    with alone(*TWELVE, ranks_fork=True) as process:
        until_with(process, lambda: statuses().count("done") >= 2)
        until_with(process, lambda: statuses().count("running") == len(children(process.process.pid)) == 2)
        until(lambda: kill_in_the_middle(process))
    until(lambda: "running" not in statuses())
    before = statuses()
    assert set(before) == {"done", "killed", "waiting"}, before
    done = {m.folder: m.directory.stat().st_mtime_ns for m in sweep_of().members if m.status() == "done"}
    code, said = swept("run", "--resume", str(sweep_of().folder), "--at-once", "2")
    assert code == 0, said
    assert statuses() == ["done"] * 12
    assert all(folder.exists() for folder in done)
    resumed = [json.loads((m.directory / "summary.json").read_text())["resumed_from"] for m in sweep_of().members]
    assert any(resumed)
    for member in sweep_of().members:
        words = [word for text in member.combination.overrides for word in ("--set", text)]
        single = f"single/{member.combination.folder}"
        given = [*words, "--set", f"run.directory={single}"]
        assert main(["run", "shared.toml", *given]) == 0
        assert weights_bytes(only_run(single)) == weights_bytes(member.directory), member.words
        assert without_times(only_run(single)) == without_times(member.directory), member.words


SHORT = SPEC + "[checkpoint]\nevery = '1 epoch'\n"


def test_a_run_that_fails_does_not_stop_the_others(spec):
    (spec / "shared.toml").write_text(SHORT)
    code, said = swept("run", "shared.toml", "--sweep", "optimizer.options.lr=1e30,0.01", "--set", "run.log_every=1")
    assert code == 1, said
    assert statuses() == ["failed", "done"]
    lines = said.splitlines()
    assert any(line.startswith("1/2 done   lr=0.01: done   best test/top1 ") for line in lines), said
    assert any(line.startswith("lr=1e+30: failed: the loss is ") for line in lines), said
    assert "2 runs: 1 done, 1 failed" in lines
    folder = sweep_of().folder
    assert (folder / "report.html").read_text().count("<table") > 0
    assert "tries again" in lines[-1], said
    assert main(["runs"]) == main(["runs", str(folder)]) == main(["report", str(folder)]) == 0
    assert main(["report", str(sweep_of().members[1].folder)]) == 0, "the folder of one run stands for it"


def test_where_the_sweep_itself_is_killed_its_runs_stop_with_a_checkpoint(spec):
    (spec / "shared.toml").write_text(ENDLESS)
    with alone("run", "shared.toml", "--seeds", "1", ranks_fork=True) as process:
        until_with(process, lambda: statuses() == ["running"])
        process.kill()
        process.process.join()
    until(lambda: statuses() != ["running"])
    assert statuses() == ["interrupted"]


def test_ctrl_c_ends_all_runs_and_says_how_to_continue(spec):
    (spec / "shared.toml").write_text(ENDLESS)
    with alone("run", "shared.toml", "--seeds", "3", "--at-once", "2", ranks_fork=True) as process:
        until_with(process, lambda: statuses().count("running") == 2)
        until(lambda: len([file for file in Path("runs").glob("*/*/*/metrics.jsonl") if file.stat().st_size]) == 2)
        process.kill(signal.SIGINT)
        assert ended([process]) == [130], process.said
    folder = sweep_of().folder
    assert statuses() == ["interrupted", "interrupted", "waiting"], process.said
    assert {"0/3 done   seed=0: interrupted", "0/3 done   seed=1: interrupted"} <= {*process.said.splitlines()}
    assert f"continue with: petra-graph run --resume {folder}" in process.said.splitlines()
    assert "Traceback" not in process.said
    directory = sweep_of().members[0].directory
    assert list((directory / "checkpoints").iterdir())
    assert [reopen_sweep(folder).at_once, reopen_sweep(folder, 3).at_once] == [2, 3]
    (spec / "shared.toml").write_text(ENDLESS.replace("hidden = 12", "hidden = 11"))
    for name in (str(folder), "latest"):
        code, said = swept("run", "--resume", name)
        assert code == 2
        assert "shared.toml gives other runs now than when the sweep began: seed=2" in said, said
    code, said = swept("run", "--resume", "latest", "--processes", "2")
    assert code == 2
    assert f"A resumed sweep keeps its runs ({folder})" in said, said
    with pytest.raises(SpecError, match=r"is a sweep\n.*continue it with pg\.sweep\(resume="):
        pg.train(resume="latest")


def test_a_dry_run_lists_all_combinations_and_starts_none(spec, capsys):
    words = (
        "run",
        "shared.toml",
        "--sweep",
        "optimizer.options.lr=0.1,0.2",
        "--seeds",
        "2",
        "--fast-dev-run",
        "--dry-run",
    )
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[0] == "4 runs of 2 combinations"
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["runs"] == ["lr=0.1, seed=0", "lr=0.1, seed=1", "lr=0.2, seed=0", "lr=0.2, seed=1"]
    assert [one["micro-batches"] for one in printed["combinations"]] == [2, 2]
    assert not (spec / "runs").exists()


def test_a_warning_of_some_combinations_names_them(spec, capsys):
    # "no stage has a delay" stood there as if `petra` had none.
    predicted = ("optimizer.name=adamw", "optimizer.delay={predict=true}")
    words = ["run", "shared.toml", "--dry-run", "--sweep", "method.name=petra,backprop", "--set", predicted[0]]
    assert main([*words, "--set", predicted[1]]) == 0
    assert "[optimizer.delay] changes nothing: no stage has a delay (method=backprop)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["shared.toml", "--at-once", "2"], "--at-once is of a sweep"),
        (["--resume", "latest", "--seeds", "2"], "A resumed sweep keeps its runs"),
        (["--resume", "latest", "--at-once", "2"], "no run in runs has a checkpoint"),
        (["-", "--seeds", "2"], "cannot be read by several processes"),
        (["shared.toml", "--seeds", "2", "--max-restarts", "1"], "--max-restarts needs --processes"),
    ],
)
def test_what_is_refused(spec, capsys, words, message):
    assert main(["run", *words]) == 2
    assert message in capsys.readouterr().err
    assert not (spec / "runs").exists()


def test_a_sweep_from_python(spec, monkeypatch):
    monkeypatch.setattr("petra_graph_studies.sweeping.member_processes.start_process", forked_member)
    made = pg.load_spec("shared.toml", {"run.epochs": 1})
    sweep = pg.sweep(made, {"optimizer.options.lr": [0.01, 0.02]}, {"run.seed": 4}, seeds=2, at_once=2)
    assert [run.summary["seed"] for run in sweep.runs] == [4, 5, 4, 5]
    assert [run.status for run in sweep.runs] == ["done"] * 4
    assert sweep.failed == {}
    lines = sweep.table(120).splitlines()
    assert lines[0].split()[:4] == ["combination", "runs", "best", "test/top1"]
    assert {line.split()[0] for line in lines[2:4]} == {"lr=0.01", "lr=0.02"}
    assert "<pre>" in sweep._repr_html_()
    assert pg.sweep(resume=sweep).directory == sweep.directory
    with pytest.raises(TypeError, match="give `values`"):
        pg.sweep(made)
    with pytest.raises(SpecError, match="cannot be found by other processes"):
        pg.sweep(made.replace({"graph.node.near.block": "__main__:Mine"}), seeds=2)
