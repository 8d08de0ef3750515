"""What other distributions try before a run, found by entry points; the core alone trains, to the same bits, and says what it lacks."""

from __future__ import annotations

import pytest

from petra_graph.cli import plugin_verbs
from petra_graph.cli.main import main
from petra_graph.registry.discovery import scan
from petra_graph.training import before_run
from petra_graph.training.prepared_run import prepare
from tests.support.runs import SPEC, only_run, weights_bytes

SPEC_OF_ONE_EPOCH = SPEC.replace("epochs = 2", "epochs = 1")
BLOCKS = """
from petra_graph.blocks import AdditiveCoupling


class Right(AdditiveCoupling):
    def residual(self, x):
        return x.tanh()


class Wrong(Right):
    def inverse(self, y, s):
        return s, y - 5 * self.residual(s)
"""
HOOKS = """
import torch
from petra_graph.errors import PluginError, Problem
from petra_graph.training.before_run import Tried


def warns(prepared, reporter):
    torch.manual_seed(7)
    with reporter.step("trying it"):
        return Tried(doubts=[f"{len(prepared.programs)} stages are many"])


def refuses(prepared, reporter):
    raise PluginError([Problem(message="optimizer is broken", hint="mend it", path=("optimizer",))])
"""


@pytest.fixture
def alone(monkeypatch):
    """The core without other distributions."""

    def of_core():
        entries, unreadable = scan()
        return tuple(entry for entry in entries if entry.distribution != "petra-graph-conformance"), unreadable

    monkeypatch.setattr(before_run, "scan", of_core)
    monkeypatch.setattr(plugin_verbs, "scan", of_core)


@pytest.fixture
def hook(install, write):
    write("a.toml", SPEC_OF_ONE_EPOCH)

    def installed(target):
        install("my-hooks", f"[petra_graph.before_run]\nmine = {target}\n", my_hooks=HOOKS)

    return installed


def spec_of(block):
    return SPEC_OF_ONE_EPOCH.replace('"rev-mlp"', f'"{block}"').replace("hidden = 12, dropout = 0.1", "")


def test_without_the_kit_a_run_trains_to_the_same_bits(write, request, capsys):
    write("mine.py", BLOCKS)
    write("a.toml", spec_of("mine:Right"))
    assert main(["run", "a.toml", "--set", "run.directory=with"]) == 0
    request.getfixturevalue("alone")
    assert main(["run", "a.toml", "--set", "run.directory=without"]) == 0
    assert weights_bytes(only_run("with")) == weights_bytes(only_run("without"))
    assert "conformance" not in capsys.readouterr().err


def test_without_the_kit_nobody_tries_a_stranger(write, request, capsys):
    write("mine.py", BLOCKS)
    write("a.toml", spec_of("mine:Wrong"))
    assert main(["run", "a.toml", "--dry-run"]) == 4
    assert 'block "mine:Wrong" breaks a promise (inverse)' in capsys.readouterr().err
    request.getfixturevalue("alone")
    assert main(["run", "a.toml", "--dry-run"]) == 0


def test_without_the_kit_its_verb_says_how_it_is_installed(alone, capsys):
    assert main(["check", "rev-basic"]) == 2
    message = (
        "The verb 'check' is not installed: install petra-graph-conformance: in a clone of petra-graph, "
        "`pip install ./plugins/petra-graph-conformance`."
    )
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "checkpoint.best='validation/loss'",
            'best = "validation/loss", and the evaluations after epochs read the test data',
        ),
        ("graph.node.2.options.outputs=3", 'the head "head" has 3 outputs, but the data set has 10 classes'),
    ],
)
def test_the_core_itself_refuses_what_needs_no_trial(alone, write, capsys, change, message):
    write("a.toml", SPEC_OF_ONE_EPOCH)
    assert main(["run", "a.toml", "--dry-run", "--set", change]) == 2
    assert message in capsys.readouterr().err


def test_a_hook_warns_and_leaves_generators_as_they_were(hook):
    hook("my_hooks:warns")
    assert list(prepare("a.toml").tried.doubts) == ["4 stages are many"]
    assert list(prepare("a.toml", ["run.self_check=false"]).tried.doubts) == []


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("my_hooks:refuses", "a.toml:23: optimizer is broken"),
        (
            "my_hooks:gone",
            "my-hooks cannot try plugins before a run: 'my_hooks:gone' cannot be imported: AttributeError",
        ),
    ],
)
def test_a_hook_refuses_a_run(hook, capsys, target, message):
    hook(target)
    assert main(["run", "a.toml", "--dry-run"]) == 4
    assert message in capsys.readouterr().err
    assert main(["run", "a.toml", "--dry-run", "--set", "run.self_check=false"]) == 0
