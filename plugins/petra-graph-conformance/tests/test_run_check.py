"""A run asks the kit once for each digest of a plugin's code, options and shapes, and names the verdict in its record."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from petra_graph_conformance import run_check

from petra_graph.cli.main import main
from tests.support.runs import only_run, weights_bytes

BLOCKS = """
import torch
from torch import nn
from petra_graph.blocks import AdditiveCoupling


class Mine(AdditiveCoupling):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = nn.Linear(inputs[0][0], inputs[0][0])

    def residual(self, x):
        return self.linear(x).tanh()
"""
MISTAKE = BLOCKS.replace("self.linear(x).tanh()", "self.linear(x).tanh() * self.mask.to(x)").replace(
    "inputs[0][0])\n\n", "inputs[0][0])\n        self.mask = torch.rand(inputs[0]).round()\n\n"
)
PRINTS = f"print('imported')\n{BLOCKS}"
SPEC = """
name = "asked"
[[graph.node]]
name = "stem"
block = "linear-stem"
options = { features = 6 }
[[graph.node]]
name = "mine"
block = "asked_blocks:Mine"
[[graph.node]]
name = "head"
block = "pool-linear"
options = { outputs = 3 }
[data]
name = "random"
batch = 8
options = { shape = [4], dtype = "float32", classes = 3, train = 32, test = 8 }
[run]
epochs = 1
"""


@pytest.fixture
def asked(write, monkeypatch, tmp_path):
    """Write a block and its specification; the cache is empty."""
    monkeypatch.setenv("PETRA_GRAPH_CACHE", str(tmp_path / "cache"))
    write("asked.toml", SPEC)

    def written(code):
        sys.modules.pop("asked_blocks", None)
        write("asked_blocks.py", code)
        return "asked.toml"

    yield written
    sys.modules.pop("asked_blocks", None)


def test_it_is_asked_once_and_the_verdict_is_in_the_record(asked, capsys):
    assert main(["run", asked(BLOCKS), "--set", "run.directory=first"]) == 0
    assert 'checked block "asked_blocks:Mine" in ' in capsys.readouterr().err
    assert main(["run", "asked.toml", "--set", "run.directory=second"]) == 0
    assert "checked block" not in capsys.readouterr().err
    for folder in ("first", "second"):
        record = json.loads((only_run(folder) / "env.json").read_text())["promises"]
        assert list(record) == ['node "mine": block "asked_blocks:Mine"']
        assert record['node "mine": block "asked_blocks:Mine"'].endswith(" promises kept")
    assert main(["run", asked(BLOCKS + "\n# changed\n"), "--dry-run"]) == 0
    assert "checked block" in capsys.readouterr().err


def test_a_promise_that_only_check_asked_refuses_a_run(asked, capsys):
    for _ in range(2):  # a verdict that refuses is not kept
        assert main(["run", asked(MISTAKE), "--dry-run"]) == 4
        assert "breaks a promise (state dictionary): a block that has loaded it" in capsys.readouterr().err
    assert main(["run", asked(MISTAKE), "--dry-run", "--set", "run.self_check=false"]) == 0


def test_one_cause_at_several_nodes_is_one_problem(asked, write, capsys):
    options = "\n    @attrs.frozen(kw_only=True)\n    class Options:\n        number: int = 1\n"
    asked(f"import attrs\n{MISTAKE}".replace("(AdditiveCoupling):\n", f"(AdditiveCoupling):{options}\n"))
    node = '[[graph.node]]\nname = "mine"\nblock = "asked_blocks:Mine"\n'
    other = node.replace('"mine"', '"other"') + "options = { number = 2 }\n"
    write("asked.toml", SPEC.replace(node, node + other))
    assert main(["run", "asked.toml", "--dry-run"]) == 4
    said = capsys.readouterr().err
    assert said.count("breaks a promise") == 1
    assert "gives other outputs in training mode (and at 1 other place)" in said
    asked("import no_such_module")
    write("asked.toml", SPEC.replace(node, node + other))
    assert main(["run", "asked.toml", "--dry-run"]) == 4
    said = capsys.readouterr().err
    assert said.count("No module named 'no_such_module' (and at 1 other place)") == said.count("no_such_module") == 1


def test_what_takes_long_is_said_and_no_run_waits_again(asked, capsys, monkeypatch):
    monkeypatch.setattr(run_check, "LIMIT_SECONDS", 0.0)
    for times in (1, 0):
        assert main(["run", asked(BLOCKS), "--dry-run"]) == 0
        said = capsys.readouterr().err
        assert said.count("checked block") == times
        assert 'node "mine": block "asked_blocks:Mine": after 0 s of checks, declaration, ' in said
        assert "are not asked; `petra-graph check asked_blocks:Mine` asks all" in said


def test_it_changes_nothing_of_the_run(asked):
    before = torch.get_rng_state(), torch.get_num_threads()
    for folder, more in (("with", ()), ("without", ("--set", "run.self_check=false"))):
        assert main(["run", asked(BLOCKS), "--set", f"run.directory={folder}", *more]) == 0
    assert weights_bytes(only_run("with")) == weights_bytes(only_run("without"))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()) == (
        True,
        torch.float32,
        before[1],
    )


def test_a_plugin_that_prints_does_not_break_json(asked, capsys):
    asked(PRINTS)
    assert main(["check", "asked_blocks:Mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["status"] == "kept"


NETWORK = """
from itertools import count
from petra_graph.plugins import NodeSpec

made = count()


def network(options, facts):
    return (
        NodeSpec(name="stem", block="linear-stem", options={"features": 6}),
        NodeSpec(name=f"mine{NUMBER}", block="rev-mlp", options={"hidden": 4}),
        NodeSpec(name="head", block="pool-linear", options={"outputs": 3}),
    )
"""


@pytest.mark.parametrize(("number", "code"), [("0", 0), ("{next(made)}", 4)])
def test_an_architecture_is_asked(asked, write, capsys, number, code):
    asked(NETWORK.replace("{NUMBER}", number))
    data = SPEC.partition("[data]")[2]
    write("asked.toml", f'name = "asked"\n[architecture]\nname = "asked_blocks:network"\n[data]{data}')
    assert main(["run", "asked.toml", "--dry-run"]) == code
    said = capsys.readouterr().err
    assert ("breaks a promise (nodes): it returns other nodes each time" in said) == (code == 4)
