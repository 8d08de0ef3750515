"""What only a GPU can tell is measured in pieces that a machine without one can walk through dry, and that survive interruptions."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from petra_graph.cli.main import main as petra_graph
from tools.gpu import (
    CUDA_TESTS,
    REVNET18,
    REVNET50,
    ROOT,
    Day,
    Piece,
    carry_out,
    main,
    pieces,
    plan_and_run,
    results,
    side_by_side,
    write_page,
)

TORCH = "tools/bench/torch_pipelines.py"


@pytest.fixture
def day(tmp_path) -> Day:
    return Day(folder=tmp_path, gpus=0, rehearsal=True)


def piece(text: str, name: str = "one") -> Piece:
    commands = [(sys.executable, "-c", text)]
    return Piece(name=name, question="Is it so?", commands=commands, read=lambda: [{"answer": True}])


def test_without_a_gpu_it_says_so_and_measures_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    done = CliRunner().invoke(main, ["--folder", str(tmp_path / "gpu")])
    assert done.exit_code == 1
    assert "no GPU is here, so nothing was measured" in done.output
    assert not (tmp_path / "gpu").exists()


def test_a_python_without_torch_is_named_in_a_line():
    done = subprocess.run(
        [sys.executable, "-S", ROOT / "tools" / "gpu.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert re.fullmatch(r"No module named '\w+'; .*make gpu PYTHON=.*\n", done.stderr)


@pytest.mark.parametrize(("gpus", "several"), [(1, False), (2, True)])
def test_a_pretended_machine_is_walked_through_dry(tmp_path, gpus, several):
    done = CliRunner().invoke(main, ["--list", "--pretend", str(gpus), "--folder", str(tmp_path / "gpu")])
    assert done.exit_code == 0
    assert ("--processes 2" in done.output) == ("run.transport=nccl" in done.output) == several
    assert ("NCCL refuses two processes on one" in done.output) == (not several)
    assert "tests/promises/test_cuda.py" in done.output
    assert not (tmp_path / "gpu").exists()


def test_all_tests_that_need_cuda_are_in_the_list():
    skipped = "skipif(not " + "torch.cuda"
    needing = [path for path in (ROOT / "tests").rglob("test_*.py") if skipped in path.read_text()]
    assert {str(path.relative_to(ROOT)) for path in needing} == set(CUDA_TESTS)


def test_one_core_trains_on_few_samples(tmp_path):
    """In float64 it computes about six a second; a piece has ten minutes."""
    commands = [command for piece in pieces(Day(folder=tmp_path, gpus=2)) for command in piece.commands]
    on_cpu = [command for command in commands if 'partition.devices=["cpu"]' in command]
    assert len(on_cpu) == 3
    for command in on_cpu:
        settings = dict(part.split("=", 1) for part in command if "=" in part)
        assert int(settings["data.options.train"]) <= 200
        assert int(settings["data.options.train"]) >= 20 * int(settings["data.batch"])


@pytest.mark.parametrize("rehearsal", [True, False])
def test_every_training_is_one_that_validate_accepts(tmp_path, monkeypatch, capsys, rehearsal):
    monkeypatch.chdir(ROOT)
    day = Day(folder=tmp_path, gpus=2, rehearsal=rehearsal)
    commands = [command for piece in pieces(day) for command in piece.commands if {"petra_graph", TORCH} & {*command}]
    assert len(commands) > 10
    for command in commands:
        spec = next(part for part in command if part.endswith(".toml"))
        overrides = [part for part in command if re.match(r"[a-z_.]+=(?!.*profile\.json)", part)]
        assert petra_graph(["validate", spec, *(part for one in overrides for part in ("--set", one))]) == 0, (
            capsys.readouterr()
        )


@pytest.mark.parametrize("network", [REVNET18, REVNET50])
@pytest.mark.parametrize("rehearsal", [True, False])
def test_every_network_fits_its_data(tmp_path, monkeypatch, capsys, network, rehearsal):
    """Which validate does not see: RevNet50 has 1,000 classes, and the images had 10."""
    monkeypatch.chdir(ROOT)
    (_, *trainings) = plan_and_run(Day(folder=tmp_path, gpus=1, rehearsal=rehearsal), network).commands
    command = [part for part in trainings[0] if "profile.json" not in part]
    options = command[command.index("run") :]
    options = [word for at, word in enumerate(options) if word != "--set" or options[at + 1 : at + 2] != ["--set"]]
    assert petra_graph([*options, "--set", 'partition.devices=["cpu"]', "--dry-run"]) == 0, capsys.readouterr()


@pytest.mark.parametrize("network", [REVNET18, REVNET50])
@pytest.mark.parametrize("rehearsal", [True, False])
def test_the_comparison_with_plain_autograd_begins(tmp_path, monkeypatch, network, rehearsal):
    """The specification of RevNet18 writes no [graph], in which its images' shape was set."""
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(ROOT / "tools" / "bench")
    benchmark = importlib.import_module("device")
    ready = []

    def ends(one):
        ready.append(one)
        raise StopIteration

    monkeypatch.setattr(benchmark, "runtime_of", ends)
    day = Day(folder=tmp_path, gpus=1, rehearsal=rehearsal)
    side = 32 if rehearsal or network is REVNET18 else 224
    ((_, _, *options),) = side_by_side(day, network, side=side, classes=10 if network is REVNET18 else 1000).commands
    with pytest.raises(StopIteration):
        benchmark.main([*options, "--device", "cpu", "--batch", "4", "--micro-batches", "2"], standalone_mode=False)
    assert ready[0].network.checked.facts.shape == (3, side, side)


def test_a_piece_that_is_done_is_not_repeated_and_one_that_failed_is(day):
    assert carry_out(piece("pass"), day, 60)["status"] == "done"
    failed = carry_out(piece("raise SystemExit(3)", "other"), day, 60)
    assert failed["status"].startswith("failed: exit code 3")
    found = results(day, [piece("pass"), piece("pass", "other"), piece("pass", "third")])
    assert {name: one["status"] == "done" for name, one in found.items()} == {"one": True, "other": False}


def test_a_piece_that_takes_too_long_is_ended_with_its_processes(day):
    begin_another = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    done = carry_out(piece(begin_another), day, 1)
    assert "takes longer than its time" in done["status"]


def test_results_that_cannot_be_read_are_a_failure_and_not_a_traceback(day):
    unreadable = Piece(name="one", question="", commands=[], read=lambda: json.loads("no"))
    assert carry_out(unreadable, day, 60)["status"].startswith("failed: its results cannot be read: JSONDecodeError")


def test_the_page_has_a_table_for_each_question(day):
    page = write_page(day, [carry_out(piece("pass"), day, 60)])
    assert "## Is it so?\n\n| answer |\n| --- |\n| yes |" in page.read_text()
    document = json.loads(Path(page).with_suffix(".json").read_text())
    assert str(day.folder) not in json.dumps(document["pieces"])
