"""What a distribution of this project's folder `plugins/` adds, where it is not installed: who has it, and how it is installed."""

from __future__ import annotations

import json
import re

import pytest

import petra_graph as pg
from petra_graph.errors import SpecError
from petra_graph.planning.check.check_spec import check_spec
from petra_graph.registry import discovery, registry
from petra_graph.registry.registry import discover
from tests.support.runs import SPEC

INSTALL = "install petra-graph-modules: in a clone of petra-graph, `pip install ./plugins/petra-graph-modules`"


@pytest.fixture
def core(monkeypatch):
    """The registry of a core that is installed alone."""
    alone = discover().only(["petra-graph"])
    monkeypatch.setattr(registry, "discover", lambda *_: alone)
    return alone


def problems_of(spec, core, *overrides):
    with pytest.raises(SpecError) as caught:
        check_spec(spec, overrides, registry=core)
    assert caught.value.exit_code == 2
    return [(str(one.where), one.message, one.hint) for one in caught.value.problems]


def test_tables_and_blocks(write, core):
    tables = '[conversion]\ncoupling = "midpoint"\n[finetune]\ntrained = ["head"]\n'
    line = SPEC.count("\n") + 1
    path = write("a.toml", SPEC + tables)
    assert problems_of(path, core) == [
        (f"{path}:{line}:2", "[conversion] is not installed", INSTALL),
        (f"{path}:{line + 2}:2", "[finetune] is not installed", INSTALL),
    ]
    own = write("b.toml", '[architecture]\nname = "module"\noptions = { build = "a:b" }\n[data]\nname = "digits"\n')
    assert problems_of(own, core) == [(f"{own}:2:8", 'architecture "module" is not installed', INSTALL)]
    [(where, message, hint)] = problems_of(write("c.toml", SPEC.replace('"pool-linear"', '"module-head"')), core)
    assert where.startswith("c.toml:") or "/c.toml:" in where
    assert (message, hint) == ('block "module-head" is not installed', INSTALL)
    data = '[architecture]\nname = "revnet"\noptions.depth = 18\n[data]\nname = "torch"\noptions = { train = "a:b", test = "a:b" }\n'
    path = write("d.toml", data)
    assert problems_of(path, core) == [(f"{path}:5:8", 'data set "torch" is not installed', INSTALL)]


def test_values_set_and_specs_made_in_code(write, core):
    path = write("a.toml", SPEC)
    [(where, message, hint)] = problems_of(path, core, 'conversion.coupling="midpoint"')
    assert (message, hint) == ("[conversion] is not installed", INSTALL)
    assert "--set" in where
    with pytest.raises(SpecError, match=r"\[finetune\] is not installed"):
        pg.make_spec(architecture={"name": "revnet"}, data={"name": "digits"}, finetune={"trained": ["head"]})


def test_names(monkeypatch):
    monkeypatch.setattr(discovery, "scan", lambda: ((), ()))
    with pytest.raises(AttributeError, match=re.escape(f"no attribute 'buffered': {INSTALL}")):
        pg.buffered(dict)
    with pytest.raises(AttributeError, match=re.escape(f"no attribute 'from_torch': {INSTALL}")):
        pg.from_torch(dict, dict)
    with pytest.raises(SpecError, match=re.escape(INSTALL)):
        pg.make_spec(module=dict, data={"name": "digits"})


def test_a_run_that_was_made_with_one(write, core, here):
    write("resolved.toml", SPEC.replace('"pool-linear"', '"module-head"'))
    write("env.json", json.dumps({"plugins": {"blocks/module-head": "petra-graph-modules 0.1.0"}}))
    [(_, message, hint)] = problems_of("resolved.toml", core)
    assert (message, hint) == ('block "module-head" is not installed', INSTALL)
