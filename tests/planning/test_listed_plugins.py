"""Callbacks of a specification: which ones it means, and what is wrong with a list of them."""

from __future__ import annotations

import sys

import pytest

from petra_graph.errors import SpecError
from petra_graph.planning.check_spec import check_spec
from petra_graph.training.prepare import prepare
from tests.support.loggers import named
from tests.support.specs import SHORT_SPEC as SPEC


def faults(write, text, *overrides):
    with pytest.raises(SpecError) as caught:
        check_spec(write("a.toml", SPEC + text), overrides)
    return [(str(problem.where.line), problem.message, problem.hint) for problem in caught.value.problems]


def test_mistakes_have_their_places(write):
    line = SPEC.count("\n")
    text = named("callback", "emo", "ema", "ema", "mlflow") + "experimnt = 1\noptions = { experiment = 2 }\n"
    assert [(int(at) - line, message) for at, message, _ in faults(write, text)] == [
        (3, 'unknown callback "emo"'),
        (9, 'callback "ema" is listed twice'),
        (13, 'unknown key "experimnt" in callback "mlflow"'),
        (14, 'experiment in the options of callback "mlflow" must be a string (got 2)'),
    ]


def test_a_missing_package_is_told_before_the_run_with_what_installs_it(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    text = SPEC + named("callback", "ema", "mlflow")
    assert check_spec(write("a.toml", text))
    with pytest.raises(SpecError) as caught:
        prepare(write("a.toml", text))
    (problem,) = caught.value.problems
    assert problem.message == "callback \"mlflow\" needs the module 'mlflow', which is not installed"
    assert problem.hint == "pip install 'petra-graph-studies[mlflow]'"
