"""The table `[optimizer.delay]`: what reads it, and what became of the options that were there before it."""

from __future__ import annotations

import pytest

from petra_graph.cli.main import main
from petra_graph.planning.check.check_spec import check_spec
from petra_graph.spec.load_spec import dump
from petra_graph.training.prepared_run import prepare
from petra_graph.training.record.resolved_spec import resolved
from tests.support.runs import SPEC

TABLE = '[optimizer.delay]\ncorrection = "spike"\npredict = true\n'


@pytest.fixture
def spec(write):
    return write("a.toml", SPEC)


def failed(capsys, *words):
    assert main([*words]) == 2
    return " ".join(capsys.readouterr().err.split())


def test_its_options_are_read_beside_those_of_the_optimizer(write):
    checked = check_spec(write("a.toml", SPEC + TABLE), ["optimizer.name=adamw"])
    assert (checked.correction.options.correction, checked.correction.options.predict) == ("spike", True)
    assert "petra-graph-delay" in {plugin.distribution for plugin in checked.plugins}


def test_a_resolved_specification_has_every_option_of_it(write):
    spec = resolved(prepare(write("a.toml", SPEC + TABLE)))
    assert spec.optimizer.delay == {"correction": "spike", "predict": True, "correct_discrepancy": False}
    again = resolved(prepare(write("b.toml", dump(spec))))
    assert again == spec
    assert resolved(prepare(write("c.toml", SPEC))).optimizer.delay is None


def test_problems_of_both_tables_come_together(write, capsys):
    wrong = SPEC.replace("lr = 0.05 }", 'lr = "x" }') + "[optimizer.delay]\npredcit = true\ncorrection = 'spik'\n"
    said = failed(capsys, "validate", write("a.toml", wrong))
    assert 'lr in the options of optimizer "sgd" must be a number' in said
    assert 'unknown key "predcit" in the options of correction "delay"' in said
    assert "did you mean 'predict'?" in said
    assert """correction in the options of correction "delay" must be""" in said


@pytest.mark.parametrize(
    ("optimizer", "key", "message"),
    [
        (["name=soap"], "predict=true", "predict = true needs an optimizer whose momentum it knows"),
        (["name=soap"], "correction=spike", 'correction = "spike" needs an optimizer whose momentum it knows'),
        (["name=adamw", "options.betas=[0.0, 0.9]"], "predict=true", "predict = true needs a first beta above 0"),
    ],
)
def test_an_optimizer_that_it_cannot_correct_is_refused_at_the_key(spec, capsys, optimizer, key, message):
    given = [word for one in (*optimizer, f"delay.{key}") for word in ("--set", f"optimizer.{one}")]
    for verb in ("plan", "run"):
        refused_at_the_key(failed(capsys, verb, spec, *given), key, message)


def refused_at_the_key(said, key, message):
    assert said.startswith(f"--set optimizer.delay.{key}: {message}")
    assert said.count(message) == 1
