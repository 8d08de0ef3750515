"""Studies go on where they stopped, take no results of other settings, and write what they found."""

from __future__ import annotations

import json
import shutil
import subprocess
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from petra_graph.cli.main import main as petra_graph
from petra_graph.errors import SpecError
from tests.support import ROOT
from tests.support.runs import SPEC
from tools.studies import study, table4
from tools.studies.study import Case, Study


@pytest.fixture(autouse=True)
def processes(monkeypatch):
    """Runs as they would be, inside this process; the list says which were started."""
    started = []

    def start(command, *, stdout, **_):
        started.append(command[command.index("run") + 1 :])
        code = petra_graph(command[command.index("run") :])
        stdout.write(f"ended with {code}")
        return SimpleNamespace(wait=lambda _: code)

    monkeypatch.setattr(study, "subprocess", SimpleNamespace(Popen=start, TimeoutExpired=subprocess.TimeoutExpired))
    return started


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SPEC)
    return str(path)


def a_study(spec, tmp_path, *overrides):
    return Study(spec=spec, overrides=("run.epochs=1", *overrides), output=tmp_path / "study")


CASES = [Case(name=f"seed{seed}", overrides=(f"run.seed={seed}",)) for seed in range(2)]


def test_finished_runs_are_not_repeated(spec, tmp_path, processes):
    first = a_study(spec, tmp_path).carry_out(CASES[:1])
    assert len(processes) == 1
    both = a_study(spec, tmp_path).carry_out(CASES)
    assert len(processes) == 2
    assert both["seed0"].directory == first["seed0"].directory
    assert len(both["seed1"].accuracies()) == 1


def unfinished(done, status):
    """Make a finished run one that ended before: killed, if it has no summary."""
    summary = done.directory / "summary.json"
    if status == "killed":
        summary.unlink()
    else:
        summary.write_text(summary.read_text().replace('"done"', f'"{status}"'))


@pytest.mark.parametrize("status", ["interrupted", "failed", "killed"])
def test_a_run_that_ended_early_continues_from_its_last_epoch(spec, tmp_path, processes, status):
    begun = a_study(spec, tmp_path)
    done = begun.carry_out(CASES[:1])["seed0"]
    unfinished(done, status)
    again = begun.carry_out(CASES[:1])["seed0"]
    assert again.directory == done.directory
    assert processes[1:] == [["--resume", str(done.directory)]]


def test_a_run_that_was_killed_before_its_first_checkpoint_is_begun_anew(spec, tmp_path, processes):
    begun = a_study(spec, tmp_path)
    done = begun.carry_out(CASES[:1])["seed0"]
    unfinished(done, "killed")
    shutil.rmtree(done.directory / "checkpoints")
    assert begun.carry_out(CASES[:1])["seed0"].directory != done.directory
    assert "--resume" not in processes[1]


def test_an_unfinished_run_of_other_settings_is_left_and_begun_anew(spec, tmp_path, processes):
    done = a_study(spec, tmp_path).carry_out(CASES[:1])["seed0"]
    unfinished(done, "interrupted")
    again = a_study(spec, tmp_path, "optimizer.options.lr=0.1").carry_out(CASES[:1])["seed0"]
    assert again.directory != done.directory
    assert "optimizer.options.lr=0.1" in processes[1]


def test_finished_runs_with_other_checkpoints_are_taken(spec, tmp_path, processes):
    done = a_study(spec, tmp_path).carry_out(CASES[:1])["seed0"]
    again = a_study(spec, tmp_path, "checkpoint.every=2 updates").carry_out(CASES[:1])["seed0"]
    assert again.directory == done.directory
    assert len(processes) == 1


def test_results_of_other_settings_are_not_taken(spec, tmp_path):
    a_study(spec, tmp_path).carry_out(CASES[:1])
    with pytest.raises(click.ClickException, match="finished run of other settings; name another --output"):
        a_study(spec, tmp_path, "optimizer.options.lr=0.1").carry_out(CASES[:1])


def test_a_case_that_is_wrong_starts_nothing(spec, tmp_path, processes):
    with pytest.raises(SpecError):
        a_study(spec, tmp_path).carry_out([*CASES, Case(name="wrong", overrides=("run.epoch=2",))])
    assert not processes


def test_a_run_that_fails_is_named_after_the_others_have_ended(spec, tmp_path, processes):
    failing = Case(name="failing", overrides=("optimizer.options.lr=1e30", "run.epochs=3"))
    with pytest.raises(click.ClickException, match=r"not finished: failing \(exit code 1, .*output.txt\)"):
        a_study(spec, tmp_path).carry_out([failing, *CASES])
    assert len(processes) == 3
    assert (tmp_path / "study/runs/failing/output.txt").read_text() == "ended with 1"


def invoke(command, *arguments):
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.thorough
def test_table_4_has_five_rows(spec, tmp_path, processes):
    done = invoke(
        table4.main, "--spec", spec, "--set", "run.epochs=1", "--seeds", "2", "--output", str(tmp_path / "out")
    )
    results = json.loads((tmp_path / "out/table4.json").read_text())
    assert [row["method"] for row in results["rows"]] == list(table4.ROWS)
    assert all(len(row["each"]) == 2 for row in results["rows"])
    assert len(processes) == 10
    assert all("method.accumulation=1" in command for command in processes)
    assert "delayed-reconstructed" in done.stdout


@pytest.mark.parametrize("size", study.SIZES)
def test_sizes_are_specifications_that_exist(size, monkeypatch):
    monkeypatch.chdir(ROOT)  # Studies run there.
    from petra_graph.spec.load_spec import load

    assert load(study.SIZES[size].spec, study.SIZES[size].overrides).problems == ()
