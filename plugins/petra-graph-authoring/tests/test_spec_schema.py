"""The JSON schema: current, and of one mind with what we accept."""

import json
import tomllib

import jsonschema
import pytest
from petra_graph_authoring.spec_schema import spec_schema

from petra_graph.registry.registry import discover
from petra_graph.spec.load_spec import read_layers
from tests.support import ROOT
from tools.spec_reference import DISTRIBUTIONS

FROZEN = ROOT / "specs" / "petra-graph.schema.json"
SCHEMA = spec_schema(discover().only(DISTRIBUTIONS))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
SPECS = sorted((ROOT / "specs").glob("*.toml"))
BASES = sorted((ROOT / "specs" / "base").glob("**/*.toml"))


def test_it_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_frozen_copy_is_current():
    written = json.dumps(SCHEMA, indent=2, ensure_ascii=False) + "\n"
    assert FROZEN.read_text() == written, (
        f"run `petra-graph schema --distribution {' --distribution '.join(DISTRIBUTIONS)} > specs/petra-graph.schema.json`"
    )


def faults(values):
    return [error.message for error in VALIDATOR.iter_errors(values)]


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.name)
def test_specs_validate_as_they_are_written_and_as_they_are_merged(path):
    assert faults(tomllib.loads(path.read_text())) == []
    assert faults(read_layers(str(path)).values) == []


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.name)
def test_specs_point_to_the_schema(path):
    assert path.read_text().startswith("#:schema ./petra-graph.schema.json\n")


@pytest.mark.parametrize("path", BASES, ids=lambda path: path.name)
def test_what_specs_extend_validates_but_for_what_it_leaves_to_them(path):
    assert faults(tomllib.loads(path.read_text()) | {"extends": "anything"}) == []


GOOD = """
[data]
name = "digits"
[[graph.node]]
name = "stem"
block = "linear-stem"
options = { features = 3 }
"""


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        GOOD.replace('"linear-stem"', '"my_module:MyBlock"').replace("features", "anything"),
        GOOD.replace('"linear-stem"', '"some-dist:block"'),
        'extends = "base.toml"\n[optimizer]\nclip = { scope = "global" }\n',
        GOOD + "[partition]\nstages = [['stem']]\ndevices = ['cpu']\n",
    ],
)
def test_accepts(text):
    assert faults(tomllib.loads(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        '[data]\nname = "digits"\n',
        GOOD + '[architecture]\nname = "revnet"\n',
        GOOD.replace("block", "blok"),
        GOOD.replace('"linear-stem"', '"linear-stm"'),
        GOOD.replace("features = 3", "features = 0"),
        GOOD.replace("features = 3", "feature = 3"),
        GOOD.replace("options = { features = 3 }", ""),
        GOOD + "[method]\nname = 'petr'\n",
        GOOD + "[run]\nepochs = 0\n",
        GOOD + "[optimizer]\nclip = { by = 'norms', limit = 1 }\n",
        GOOD + "[optimizer]\nname = 'sgd'\noptions = { rate = 1 }\n",
        GOOD + "[partition]\ndevices = true\n",
    ],
)
def test_refuses(text):
    assert faults(tomllib.loads(text)) != []
