"""One test for each promise; a promise that is expected to fail, and is kept, fails."""

from __future__ import annotations

import attrs
import petra_graph_conformance as kit
import pytest
from petra_graph_conformance import (
    BrokenPromise,
    LossTrial,
    Trial,
    check_imports_no_torch,
    outputs_and_targets,
    parametrize_with_checks,
)
from petra_graph_conformance.all_checks import CHECKS
from petra_graph_conformance.verb import FACTS, TARGETS

from petra_graph.plugins import DataFacts, LossDeclaration
from tests.support import ROOT
from tests.support.blocks import SHAPE, Scaled, Sound
from tests.support.forks import command
from tests.support.kit import importable

HERE = importable(__name__)

FILE = """
import torch
from petra_graph_conformance import Trial, parametrize_with_checks
from tests.support.forks import command
from tests.support.blocks import SHAPE, Stem

class Centres(Stem):
    def forward(self, x):
        return (self.linear(x - x.mean(0)),)

TRIAL = Trial.of(Centres, [SHAPE])

@parametrize_with_checks(TRIAL, expected_failed_checks={"evaluation mode": "it is a batch norm without statistics"})
def test_expected(check):
    check()

@parametrize_with_checks(TRIAL, expected_failed_checks={"gradients": "not so"})
def test_not_expected(check):
    check()
"""


@parametrize_with_checks(Trial.of(Sound, [SHAPE, SHAPE]), Trial.of(Scaled, [SHAPE]))
def test_each_promise_is_a_test(check):
    check()


def test_tests_are_named_by_plugin_and_promise():
    mark = parametrize_with_checks(Trial.of(Scaled, [SHAPE]))
    assert [case.id for case in mark.args[1]][:3] == ["Scaled-declaration", "Scaled-construction", "Scaled-shapes"]


def test_a_promise_that_does_not_exist_cannot_be_expected_to_fail():
    with pytest.raises(ValueError, match="no promise is called gradient; there are declaration"):
        parametrize_with_checks(Trial.of(Scaled, [SHAPE]), expected_failed_checks={"gradient": "x"})


@pytest.mark.processes
def test_expected_failures_are_strict(tmp_path):
    (tmp_path / "test_it.py").write_text(FILE)
    options = ("-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path))
    done = command(*options, str(tmp_path), program="pytest", folder=ROOT)
    assert "2 failed, 33 passed, 1 xfailed" in done.stdout, done.stdout
    assert "test_it.py::test_not_expected[Centres-gradients]" in done.stdout
    assert "[XPASS(strict)] not so" in done.stdout
    assert "test_it.py::test_not_expected[Centres-evaluation mode]" in done.stdout


class Critic:
    def __init__(self, options):
        pass

    def __call__(self, output, target):
        return output.double().mean()

    def metrics(self, output, target):
        return {}


def test_what_may_be_meant_is_a_warning_unless_it_is_expected():
    trial = LossTrial.of(LossDeclaration(summary="x", build=f"{HERE}:Critic"))
    (checked,) = (case.values[0] for case in parametrize_with_checks(trial).args[1] if case.id.endswith("-bounded"))
    with pytest.warns(UserWarning, match="Critic: bounded: down the gradient of its outputs it falls"):
        checked()
    cases = parametrize_with_checks(trial, expected_failed_checks={"bounded": "it is a critic"}).args[1]
    (expected,) = (case.values[0] for case in cases if case.id.endswith("-bounded"))
    with pytest.raises(BrokenPromise):
        expected()


def test_the_help_has_a_trial_of_every_kind():
    trials = [checks.trial.__name__ for checks in CHECKS]
    assert [name for name in trials if f"`{name}.of(" not in kit.__doc__ or not hasattr(kit, name)] == []
    with pytest.raises(AttributeError, match="has no attribute 'check_block'"):
        getattr(kit, "check_block")  # noqa: B009


def test_the_package_and_the_verb_import_no_torch():
    """`petra-graph --help` imports them."""
    check_imports_no_torch("petra_graph_conformance.verb")
    check_imports_no_torch("petra_graph_conformance.before_run")


def test_what_the_verb_lists_without_torch_is_what_there_is():
    assert list(TARGETS) == list(outputs_and_targets.TARGETS)
    assert list(FACTS) == list(attrs.fields_dict(DataFacts))
