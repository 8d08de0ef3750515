"""The core without this distribution: what it says when it is asked for something of it."""

from __future__ import annotations

import pytest

import petra_graph as pg
from petra_graph.cli import plugin_verbs
from petra_graph.cli.main import main
from petra_graph.kinds.listener import Listener
from petra_graph.record.run_folders import LATEST
from petra_graph.registry import discovery, registry
from petra_graph.training.training_run import run
from tests.support.runs import SPEC, only_run

INSTALL = "install petra-graph-studies: in a clone of petra-graph, `pip install ./plugins/petra-graph-report ./plugins/petra-graph-studies`"


@pytest.fixture
def without(monkeypatch):
    """Hide this distribution's entry points from now on."""

    def hide():
        entries, unreadable = discovery.scan()
        left = tuple(entry for entry in entries if entry.distribution != "petra-graph-studies")
        for module in (discovery, plugin_verbs, registry):
            monkeypatch.setattr(module, "scan", lambda *_: (left, unreadable))

    return hide


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("run", "small.toml", "--sweep", "run.epochs=1,2"), "a sweep"),
        (("run", "small.toml", "--seeds", "2"), "a sweep"),
        (("plan", "small.toml", "--vary", "data.batch=4,8"), "--vary"),
    ],
)
def test_an_option(write, without, capsys, words, asked):
    write("small.toml", SPEC)
    without()
    assert main([*words]) == 2
    assert (
        capsys.readouterr().err == f"{asked} needs petra-graph-studies, which is not installed\n    help: {INSTALL}\n"
    )


def test_a_sweep_to_resume(write, without, capsys, here):
    write("runs/20260131T120000Z-small-sweep-3f9a1c/sweep.json", "{}")
    without()
    assert main(["run", "--resume", LATEST]) == 2
    assert (
        "the sweep runs/20260131T120000Z-small-sweep-3f9a1c needs petra-graph-studies, which" in capsys.readouterr().err
    )


@pytest.mark.parametrize("verb", ["validate", "plan", "run"])
def test_the_table_of_a_probe(write, without, capsys, verb):
    spec = write("small.toml", SPEC + "\n[probe]\nper_epoch = 2\n")
    without()
    assert main([verb, spec]) == 2
    message = "small.toml:35: [probe] needs petra-graph-studies, which is not installed\n    [probe]\n"
    assert f"{message}    help: {INSTALL}\n" in capsys.readouterr().err


def test_a_run_with_a_probe(write, without, capsys):
    """It is neither resumed nor read: its resolved specification has the table."""
    run(write("small.toml", SPEC), ["probe.per_epoch=2", "run.epochs=1", "checkpoint.every=1 epoch"], Listener())
    without()
    for words in (("run", "--resume", str(only_run())), ("evaluate", str(only_run()))):
        assert main([*words]) == 2
        assert "resolved.toml" in (said := capsys.readouterr().err)
        assert "[probe] needs petra-graph-studies" in said


def test_names_of_the_package(without):
    without()
    for name in ("sweep", "Sweep", "vary"):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}': install petra-graph-studies"):
            getattr(pg, name)


def test_what_else_a_run_does(write, without):
    without()
    run(write("small.toml", SPEC), ["run.epochs=1"], Listener())
    assert (only_run() / "summary.json").is_file()
