"""Sweeps: which runs there are, which of them are trained when the command is given again, and how they compare."""

import json
import signal
from pathlib import Path

import pytest
from petra_graph_studies.sweep import read_values, status_of

from petra_graph.cli.main import main
from petra_graph.record.run_directory import run_directories
from tests.support.forks import ENDLESS, SPEC, alone, command, ended, start_server, until
from tests.support.runs import only_run, weights_bytes, without_times

SHORT = SPEC.replace("epochs = 2", "epochs = 1") + "[checkpoint]\nevery = '1 epoch'\n"


@pytest.fixture
def spec(here):
    (here / "shared.toml").write_text(SHORT)
    return here


def sweep_folder():
    (found,) = Path("runs").glob("*-sweep")
    return found


def statuses():
    return (
        sorted(status_of(one) for one in run_directories(sweep_folder())) if list(Path("runs").glob("*-sweep")) else []
    )


def test_values_are_parted_at_commas_that_no_list_holds():
    found = read_values(["optimizer.options.betas=[0.9,0.99],[0.8, 0.9]", "name='a,b',c"])
    assert found == {
        "optimizer.options.betas": ["optimizer.options.betas=[0.9,0.99]", "optimizer.options.betas=[0.8, 0.9]"],
        "name": ["name='a,b'", "name=c"],
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "Give values, as in optimizer.options.lr=0.1,0.03, or --seeds"),
        (("run.epochs=1,2", "--set", "run.epochs=3"), "run.epochs is varied, and set as well"),
        (("run.directory=a,b",), "run.directory cannot be varied"),
        (("optimizer.options.lr=0.1,-1", "method.name=petra,petraa"), "unknown"),
    ],
    ids=str,
)
def test_what_is_refused(spec, capsys, words, message):
    assert main(["sweep", "shared.toml", *words]) == 2
    assert message in capsys.readouterr().err
    assert not (spec / "runs").exists()


def swept(spec, rates, code):
    """Sweep learning rates; return what is printed as JSON, and what is said beside it."""
    words = ("sweep", "shared.toml", f"optimizer.options.lr={rates}", "--set", "run.log_every=1", "--json")
    done = command(*words, paths=[], folder=spec)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.processes
def test_a_finished_run_is_not_trained_again_and_one_that_fails_stops_no_other(spec):
    record, said = swept(spec, "1e30,0.01", 1)
    assert [one["status"] for one in record["runs"]] == ["failed", "done"]
    assert "lr=1e+30: failed: the loss at micro-batch 1 (epoch 1) is " in said
    assert (sweep_folder() / "report.html").read_text().count("<table") > 0
    done = Path(record["runs"][1]["directory"])
    before = done.stat().st_mtime_ns
    again, _ = swept(spec, "0.01", 0)
    assert [(one["status"], one["directory"]) for one in again["runs"]] == [("done", str(done))]
    assert done.stat().st_mtime_ns == before
    single = ["run", "shared.toml", "--set", "optimizer.options.lr=0.01", "--set", "run.log_every=1"]
    assert main([*single, "--set", "run.directory=single"]) == 0
    assert weights_bytes(only_run("single")) == weights_bytes(done)
    assert without_times(only_run("single")) == without_times(done)


@pytest.mark.processes
def test_ctrl_c_ends_all_runs_with_a_checkpoint_from_which_the_same_command_continues(spec):
    start_server()
    (spec / "shared.toml").write_text(ENDLESS)
    with alone("sweep", "shared.toml", "--seeds", "3", "--at-once", "2") as process:
        until(lambda: statuses() == ["running"] * 2)
        until(lambda: len([one for one in Path("runs").glob("*/*/metrics.jsonl") if one.stat().st_size]) == 2)
        process.kill(signal.SIGINT)
        assert ended([process]) == [130], process.said
    assert statuses() == ["interrupted"] * 2, process.said
    assert "Traceback" not in process.said
    begun = run_directories(sweep_folder())
    with alone("sweep", "shared.toml", "--seeds", "3", "--at-once", "2") as process:
        until(lambda: statuses() == ["running"] * 2)
        process.kill(signal.SIGINT)
        ended([process])
    assert run_directories(sweep_folder()) == begun
    assert all((one / "summary.json").exists() for one in begun)
