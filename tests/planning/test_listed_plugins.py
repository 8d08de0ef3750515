"""Loggers and callbacks of a specification: which ones it means, and what is wrong with a list of them."""

from __future__ import annotations

import sys

import pytest

from petra_graph.errors import SpecError
from petra_graph.planning.check.check_spec import check_spec
from petra_graph.spec.load_spec import dump
from petra_graph.training.prepare import prepare
from petra_graph.training.resolved_spec import resolved
from tests.support.loggers import named
from tests.support.specs import SHORT_SPEC as SPEC


def faults(write, text, *overrides):
    with pytest.raises(SpecError) as caught:
        check_spec(write("a.toml", SPEC + text), overrides)
    return [(str(problem.where.line), problem.message, problem.hint) for problem in caught.value.problems]


def loggers(write, text, *overrides):
    return [logger.plugin.name for logger in check_spec(write("a.toml", SPEC + text), overrides).loggers]


def test_by_default_tensorboard_where_it_is_installed(write, monkeypatch):
    pytest.importorskip("tensorboard")
    assert loggers(write, "") == ["tensorboard"]
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert loggers(write, "") == []


def test_a_list_means_its_loggers_alone(write):
    assert loggers(write, named("logger", "csv")) == ["csv"]
    assert loggers(write, named("logger", "jsonl")) == ["jsonl"]
    assert loggers(write, "", "logger=[]") == []
    assert loggers(write, named("logger", "csv", "tensorboard"), "logger.csv.name=jsonl") == ["jsonl", "tensorboard"]


def test_mistakes_have_their_places(write):
    line = SPEC.count("\n")
    text = named("logger", "csw", "csv", "csv", "mlflow") + "experimnt = 1\noptions = { experiment = 2 }\n"
    assert [(int(at) - line, message) for at, message, _ in faults(write, text)] == [
        (3, 'unknown logger "csw"'),
        (9, 'logger "csv" is listed twice'),
        (13, 'unknown key "experimnt" in logger "mlflow"'),
        (14, 'experiment in the options of logger "mlflow" must be a string (got 2)'),
    ]


def test_a_missing_package_is_told_before_the_run_with_what_installs_it(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    text = SPEC + named("logger", "csv", "mlflow")
    assert check_spec(write("a.toml", text))
    with pytest.raises(SpecError) as caught:
        prepare(write("a.toml", text))
    (problem,) = caught.value.problems
    assert problem.message == "logger \"mlflow\" needs the module 'mlflow', which is not installed"
    assert problem.hint == "pip install 'petra-graph-studies[mlflow]'"


def test_the_resolved_specification_has_their_options(write):
    listed = resolved(prepare(write("a.toml", SPEC + named("logger", "csv", "tensorboard"))))
    assert [logger.name for logger in listed.logger] == ["csv", "tensorboard"]
    assert "logger" not in dump(resolved(prepare(write("a.toml", SPEC)))), "what is installed elsewhere decides there"
