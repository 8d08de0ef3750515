"""A whole specification: all problems at once, and what is left to go on with."""

import tomllib

import attrs
import pytest

from petra_graph.errors import shown
from petra_graph.spec.model import DataSpec, NodeSpec, OptimizerSpec, PluginSpec, Spec
from petra_graph.spec.structure import structure
from petra_graph.spec.value_layers import PLUGIN_TABLES

NO_NETWORK = "neither [graph] nor [architecture] is given"
BASE = """
[data]
name = "digits"
[[graph.node]]
name = "stem"
block = "linear-stem"
[[graph.node]]
name = "head"
block = "pool-linear"
"""


def structured(text):
    return structure(tomllib.loads(text))


def messages(text):
    return [problem.message for problem in structured(text).problems]


def test_defaults():
    spec = structured(BASE).spec
    assert spec.method.name == "petra"
    assert spec.graph.node[0] == NodeSpec(name="stem", block="linear-stem")


def test_the_tables_that_name_plugins_are_all_known():
    attrs.resolve_types(Spec)
    named = {
        attribute.name
        for attribute in attrs.fields(Spec)
        if any(isinstance(kind, type) and issubclass(kind, PluginSpec) for kind in kinds(attribute.type))
    }
    assert set(PLUGIN_TABLES) == named


def kinds(annotation):
    return getattr(annotation, "__args__", (annotation,))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["[data] is missing", "neither [graph] nor [architecture] is given"]),
        (BASE + '[architecture]\nname = "revnet"', ["both [graph] and [architecture] are given"]),
        ("graph = [1]\n[data]\nname = 'x'", ["graph must be a table (got [1])"]),
        ("graph = 3\n[data]\nname = 'x'", ["graph must be a table (got 3)"]),
        ("graph.node = []\n[data]\nname = 'x'", ["node in [graph] must not be empty"]),
        ("graph.node = [3]\n[data]\nname = 'x'", ["the node at index 0 must be a table (got 3)"]),
        (
            BASE + "kidn = 3\n[[graph.node]]\nname = 3\nblok = 'x'",
            [
                'unknown key "kidn" in node "head"',
                "name in the node at index 2 must be a string (got 3)",
                'unknown key "blok" in the node at index 2',
            ],
        ),
        (BASE + "[optimizr]\n", ['unknown key "optimizr" in the specification']),
        (
            "[architectur]\nname = 'x'\n[data]\nname = 'x'",
            ['unknown key "architectur" in the specification', NO_NETWORK],
        ),
        (BASE.replace("graph.", "grph."), ['unknown key "grph" in the specification', NO_NETWORK]),
        (BASE + "[optimizer.clip]\n", ["limit is missing in [optimizer.clip]"]),
        ("data = 'digits'\n[architecture]\nname = 'x'", ['data must be a table (got "digits")']),
    ],
)
def test_problems(text, expected):
    assert messages(text) == expected


@pytest.mark.parametrize("name", ["a/b", "../../evil", "..", ".hidden", "a b", "a\\b", "a\n"])
def test_names_cannot_leave_the_folders_that_they_name(name):
    rule = 'must consist of letters, digits, "_", "-" and ".", and not begin with "."'
    values = tomllib.loads(BASE)
    values["name"] = values["graph"]["node"][0]["name"] = name
    found = [problem.message for problem in structure(values).problems]
    assert found == [f"name {rule} (got {shown(name)})", f"name in node {shown(name)} {rule} (got {shown(name)})"]


def test_names_are_short_enough_for_a_file_system():
    values = tomllib.loads(BASE)
    values["name"] = "ß" * 101
    (problem,) = structure(values).problems
    assert problem.message == "name must have at most 200 bytes, as a part of a file's name (got 202)"


@pytest.mark.parametrize("name", ["a", "layer1.0", "RevNet-18_b", "größe", "_", "-"])
def test_names_that_are_allowed(name):
    values = tomllib.loads(BASE)
    values["name"] = values["graph"]["node"][0]["name"] = name
    assert structure(values).problems == ()


def test_readable_tables_are_there_beside_problems():
    parts = structured(
        """
        [data]
        name = "digits"
        batch = 0
        [optimizer]
        nam = "adam"
        options = { lr = 1 }
        [loss]
        options = 3
        [[graph.node]]
        name = "stem"
        block = "linear-stem"
        kind = "bufered"
        options = { features = 3 }
        [[graph.node]]
        block = 3
        """
    ).parts
    # `nam` may have meant another plugin than the default, so that its options say nothing.
    assert set(parts) == {("data",), ("lr_schedule",), ("method",), ("graph", "node", 0)}
    assert parts[("data",)] == DataSpec(name="digits")
    assert parts[("graph", "node", 0)] == NodeSpec(name="stem", block="linear-stem", options={"features": 3})


def test_a_wrong_key_beside_the_default_plugin_does_not_hide_its_options():
    parts = structured("[optimizer]\noptions = { lr = 1 }\nclip = { limit = 0 }").parts
    assert parts[("optimizer",)] == OptimizerSpec(options={"lr": 1})
