"""Processes whose numbers would differ are told, by what and with both values."""

from __future__ import annotations

import sys

import attrs
import pytest

from petra_graph.errors import SpecError
from petra_graph.training import resolved_spec
from petra_graph.training.initial_weights import InitialWeights
from petra_graph.training.prepare import prepare
from petra_graph.training.processes.process import agree
from tests.support.runs import SPEC


class FakeWorld:
    """One process's view of a store that all share."""

    def __init__(self, rank, values):
        self.rank, self.values, self.store = rank, values, self

    def set(self, name, value):
        self.values[name] = value

    def wait(self, name):
        return self.values[name]


def difference(one, other):
    """Return what rank 1 is told, where it has prepared `other` and rank 0 `one`."""
    values = {}
    agree(FakeWorld(0, values), one)
    try:
        agree(FakeWorld(1, values), other)
    except SpecError as error:
        return [problem.message.removeprefix("rank 1 and rank 0 run different things: ") for problem in error.problems]
    return []


@pytest.fixture
def prepared(write):
    return prepare(write("a.toml", SPEC))


def test_equal_runs_agree(prepared):
    assert difference(prepared, prepared) == []


def test_another_version_of_a_library(prepared, monkeypatch):
    values = {}
    agree(FakeWorld(0, values), prepared)
    known = resolved_spec.version
    monkeypatch.setattr(resolved_spec, "version", lambda name: "1.0" if name == "numpy" else known(name))
    with pytest.raises(SpecError, match=f"numpy's version: 1.0 here, {known('numpy')} on rank 0"):
        agree(FakeWorld(1, values), prepared)


MODULE = """
from petra_graph.blocks import AdditiveCoupling


class Bounded(AdditiveCoupling):
    def residual(self, x):
        return x.tanh()
"""


def test_other_code_of_a_block_without_a_package(write):
    write("my_module.py", MODULE)
    spec = write(
        "local.toml", SPEC.replace('"rev-mlp"', '"my_module:Bounded"').replace("hidden = 12, dropout = 0.1", "")
    )
    values = {}
    agree(FakeWorld(0, values), prepare(spec))
    write("my_module.py", MODULE.replace("tanh", "sigmoid"))
    sys.modules.pop("my_module", None)
    with pytest.raises(SpecError, match="the network: for the same samples and weights its outputs differ"):
        agree(FakeWorld(1, values), prepare(spec))


@pytest.mark.parametrize("of_folder", [False, True], ids=["file", "folder"])
def test_other_weights_to_begin_with(prepared, tmp_path, of_folder):
    made = []
    for name in ("one", "alike", "other"):
        path = tmp_path / name / "weights"
        path.parent.mkdir()
        path.write_bytes(b"other" if name == "other" else b"same")
        file = path.parent if of_folder else path
        made.append(attrs.evolve(prepared, initial=InitialWeights(file=file, fitting={}, said="")))
    one, alike, other = made
    assert difference(one, alike) == []
    (told,) = difference(one, other)
    assert told.startswith("the weights to begin with: ")
