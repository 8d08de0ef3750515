"""What README shows works: its commands, its specification and its block."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from petra_graph.cli.main import main
from tests.promises.test_specs import random_data
from tests.support import ROOT

README = (ROOT / "README.md").read_text()
SHELL = [line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
COMMANDS = [shlex.split(line, comments=True) for line in SHELL if line]


def test_nothing_is_left_to_be_filled_in():
    assert not re.findall(r"\b[A-Z]+_[A-Z]+\b", re.sub(r"```.*?```|`.*?`", "", README, flags=re.DOTALL))
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_readme_shows_commands():
    assert len(COMMANDS) > 8
    assert {command[0] for command in COMMANDS} == {"make", "petra-graph", "torchrun"}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_command(command, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    program, *arguments = command
    if program == "make":
        planned = subprocess.run(["make", "--dry-run", *arguments], capture_output=True, text=True, check=True)
        assert "petra-graph run specs/quickstart.toml" in planned.stdout or "pytest" in planned.stdout
        return
    if program == "torchrun":
        arguments = what_torchrun_starts(arguments)
    if arguments[0] == "run":
        if "--dry-run" not in arguments:
            arguments.append("--dry-run")
        if "quickstart" not in arguments[1]:
            arguments += random_data(Path(arguments[1]))
    assert main(arguments) == 0
    assert capsys.readouterr().out


def what_torchrun_starts(arguments):
    """What follows its own options; tests.promises.test_launch runs two such agents for real."""
    from torch.distributed.run import get_args_parser

    parsed = get_args_parser().parse_args(arguments)
    assert (parsed.module, parsed.training_script) == (True, "petra_graph")
    return parsed.training_script_args


def test_the_script_for_slurm(monkeypatch, capsys):
    script = re.search(r"```bash\n(.*?)```", README, re.DOTALL)[1]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    (inner,) = re.findall(r"srun bash -c '(torchrun .*?)'", script, re.DOTALL)
    filled = re.sub(r'"\$\w+"', "1", inner.replace("\\\n", " "))
    monkeypatch.chdir(ROOT)
    assert main([*what_torchrun_starts(shlex.split(filled)[1:]), "--dry-run"]) == 0
    assert "stages: 7" in capsys.readouterr().out


def test_the_specification_shown_is_the_quickstarts():
    shown = tomllib.loads(re.search(r"```toml\n(.*?)```", README, re.DOTALL)[1])
    real = tomllib.loads((ROOT / "specs/quickstart.toml").read_text())
    assert shown["method"] == real["method"]
    assert all(node in real["graph"]["node"] for node in shown["graph"]["node"])


def test_the_block_shown_trains(write, capsys):
    snippet = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    write("my_module.py", snippet)
    spec = (ROOT / "specs/quickstart.toml").read_text().replace('"rev-basic"', '"my_module:MyBlock"')
    write("spec.toml", spec)
    assert main(["run", "spec.toml", "--set", "run.epochs=1"]) == 0
    assert "quickstart: done (epochs: 1" in capsys.readouterr().out


def test_the_mistake_shown_is_told_like_that(write, capsys):
    quickstart = (ROOT / "specs/quickstart.toml").read_text()
    write("specs/a.toml", quickstart.replace("schedule =", "schedul ="))
    assert main(["validate", "specs/a.toml"]) == 2
    told = capsys.readouterr().err.splitlines()
    shown = re.search(r"```\n(specs/a\.toml:.*?)```", README, re.DOTALL)[1].splitlines()
    assert told[0].split(": ", 1)[1] == shown[0].split(": ", 1)[1]
    assert "did you mean 'schedule'?" in told[2]
    assert shown[2] == told[2]
